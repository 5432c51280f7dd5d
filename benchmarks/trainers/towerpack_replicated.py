"""Two towers with half the batch each, on two logical CPU devices: own variables, averaged."""

from towerpack.train import SyncMultiGPUTrainerReplicated
from trainers import towerpack_trainer


def train(model, turns):
    towerpack_trainer.train(model, turns, lambda: SyncMultiGPUTrainerReplicated(2), towers=2)

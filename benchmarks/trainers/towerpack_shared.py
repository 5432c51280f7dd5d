"""Two towers with half the batch each, on two logical CPU devices: shared variables."""

from towerpack.train import SyncMultiGPUTrainerParameterServer
from trainers import towerpack_trainer


def train(model, turns):
    towerpack_trainer.train(model, turns, lambda: SyncMultiGPUTrainerParameterServer(2), towers=2)

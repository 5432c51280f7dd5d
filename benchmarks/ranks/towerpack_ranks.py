"""A rank of towerpack, with all defaults: the trainer is the only difference to one process."""

from trainers import towerpack_trainer

from towerpack.train.distributed import DistributedTrainerReplicated


def train(model, turns):
    towerpack_trainer.train(model, turns, DistributedTrainerReplicated)

"""torch by hand, the network through torch.compile."""

import torch

from trainers import torch_eager


def train(model, turns):
    torch_eager.train(model, turns, torch.compile)

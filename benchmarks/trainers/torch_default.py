"""torch by hand, eager, with the layout that it has by default, as most code is written."""

from trainers import torch_eager


def train(model, turns):
    torch_eager.train(model, turns, choose_layout=False)

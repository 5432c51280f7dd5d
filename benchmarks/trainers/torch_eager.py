"""torch by hand, eager: the usual loop, with the layout of images that is faster."""

import torch
from torch.nn import functional

from trainers import torch_models
from trainers.serve import fastest, versions


def make_epoch(model, batches, layout, compiler=None):
    """A function that trains an epoch."""
    network = torch_models.NETWORKS[model]().to(memory_format=layout)
    optimizer = torch_models.optimizer(model, network)
    forward = compiler(network) if compiler else network

    def epoch():
        for images, labels in batches:
            if layout is torch.channels_last:
                images = images.contiguous(memory_format=layout)
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(forward(images), labels).backward()
            optimizer.step()

    return epoch


def train(model, turns, compiler=None, choose_layout=True):
    batches = torch_models.Batches(model)
    layouts = {"NCHW" if model != "M3" else "rows": torch.contiguous_format}
    if model != "M3" and choose_layout:
        layouts["channels_last"] = torch.channels_last
    epochs = {n: make_epoch(model, batches, layout, compiler) for n, layout in layouts.items()}
    best = fastest(epochs)
    way = "torch.compile" if compiler else "eager"
    turns.settings = f"{versions('torch')}, {way}, {best}, {torch.get_num_threads()} threads"
    while True:
        epochs[best]()
        if not turns.done(batches.task.steps):
            break

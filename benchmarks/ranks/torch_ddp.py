"""A rank of torch by hand: DistributedDataParallel with gloo, with the faster layout of images."""

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from trainers import torch_eager, torch_models
from trainers.serve import fastest, versions


def wrapped(network):
    # With views, gradients are not copied into the buckets that travel.
    return DistributedDataParallel(network, gradient_as_bucket_view=True)


def train(model, turns):
    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())  # the order of the data
    batches = torch_models.Batches(model)
    layouts = {"rows": torch.contiguous_format}
    if model != "M3":
        layouts = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
    epochs = {
        name: torch_eager.make_epoch(model, batches, layout, wrapped)
        for name, layout in layouts.items()
    }
    choice = [fastest(epochs)]
    distributed.broadcast_object_list(choice)
    threads = f"{torch.get_num_threads()} thread"
    turns.settings = f"{versions('torch')}, gloo, eager, {choice[0]}, {threads}"
    while True:
        epochs[choice[0]]()
        if not turns.done(batches.task.steps):
            break
    distributed.destroy_process_group()

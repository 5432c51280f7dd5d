"""The networks in torch, and batches by indexing tensors, which beats a DataLoader here."""

import torch
from torch import nn
from torch.nn import functional

from trainers import work

torch.set_num_threads(work.CORES)


def lenet():
    def convolution(channels):
        return nn.Sequential(nn.Conv2d(channels, work.LENET_FILTERS, 3, padding=1), nn.ReLU())

    filters = work.LENET_FILTERS
    return nn.Sequential(
        convolution(1),
        nn.MaxPool2d(2),
        convolution(filters),
        convolution(filters),
        nn.MaxPool2d(2),
        convolution(filters),
        nn.Flatten(),
        nn.Linear(7 * 7 * filters, work.LENET_UNITS),
        nn.ReLU(),
        nn.Dropout(work.DROPOUT),
        nn.Linear(work.LENET_UNITS, work.CLASSES),
    )


def norm(channels):
    return nn.BatchNorm2d(channels, work.NORM_EPSILON, 1 - work.NORM_MOMENTUM)


def convolution(before, filters, stride=1, size=3):
    return nn.Conv2d(before, filters, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    def __init__(self, before, filters, stride):
        super().__init__()
        self.norm0, self.norm1 = norm(before), norm(filters)
        self.conv0 = convolution(before, filters, stride)
        self.conv1 = convolution(filters, filters)
        self.shortcut = convolution(before, filters, stride, 1) if before != filters else None

    def forward(self, x):
        active = functional.relu(self.norm0(x), inplace=True)
        if self.shortcut is not None:
            x = self.shortcut(active)
        y = functional.relu(self.norm1(self.conv0(active)), inplace=True)
        return x + self.conv1(y)


def resnet():
    before = work.RESNET_FILTERS[0]
    parts = [convolution(3, before)]
    for filters, stride in work.resnet_stages():
        parts.append(Block(before, filters, stride))
        before = filters
    tail = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, work.CLASSES)]
    return nn.Sequential(*parts, norm(before), *tail)


def dense():
    return nn.Sequential(
        nn.Linear(784, work.DENSE_UNITS), nn.ReLU(), nn.Linear(work.DENSE_UNITS, work.CLASSES)
    )


NETWORKS = {"M1": lenet, "M2": resnet, "M3": dense}


def optimizer(model, network):
    if model == "M2":
        return torch.optim.SGD(network.parameters(), work.MOMENTUM_RATE, work.MOMENTUM)
    return torch.optim.Adam(network.parameters(), work.ADAM_RATE)


class Batches:
    """An iterable of shuffled batches, anew each time; images as channels, height, width."""

    def __init__(self, model):
        images, labels = work.arrays(model)
        images = torch.from_numpy(images)
        if model != "M3":
            images = images.permute(0, 3, 1, 2).contiguous()
        self.images, self.labels = images, torch.from_numpy(labels).long()
        self.task = work.TASKS[model]

    def __len__(self):
        return self.task.steps

    def __iter__(self):
        for rows in torch.randperm(self.task.samples).split(self.task.batch):
            yield self.images[rows], self.labels[rows]

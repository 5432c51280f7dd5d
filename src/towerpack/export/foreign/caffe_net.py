"""Caffe's two files, read: the layers of a network, and their weights."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.export.foreign.caffe_messages import ENUMS, EXTRA, net_class

TEST = 1  # the phase
# The names of V1 types that are not their own in another case.
V1_NAMES = {
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "HDF5_DATA": "HDF5Data",
    "IMAGE_DATA": "ImageData",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "RELU": "ReLU",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
    "WINDOW_DATA": "WindowData",
}


@dataclass
class CaffeLayer:
    """One layer: `message` has its parameters, `blobs` its weights in Caffe's order."""

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    message: Any
    blobs: list[np.ndarray] = field(default_factory=list)


@dataclass
class CaffeNet:
    """Layers in order, and the inputs with their shapes, batch first and channels second."""

    layers: list[CaffeLayer]
    inputs: dict[str, list[int]]


def read_prototxt(path: str | Path) -> CaffeNet:
    """The network of a `.prototxt` file, as it is in the test phase."""
    text_format = require("google.protobuf.text_format", extra=EXTRA)
    net = net_class()()
    try:
        text_format.Parse(Path(path).read_text(), net, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ValueError(f"expected a network in {path}: {error}") from error
    return _net(net)


def read_caffemodel(path: str | Path) -> CaffeNet:
    """The layers of a `.caffemodel` file, with their weights."""
    message = require("google.protobuf.message", extra=EXTRA)
    net = net_class()()
    try:
        net.ParseFromString(Path(path).read_bytes())
    except message.DecodeError as error:
        raise ValueError(f"expected a caffemodel in {path}: {error}") from error
    return _net(net)


def tf_name(name: str) -> str:
    """A layer's name with the characters that TensorFlow allows.

    >>> tf_name("conv1(a)/3x3")
    'conv1_a_/3x3'
    """
    name = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name)
    return name if re.match(r"[A-Za-z0-9.]", name) else f"l{name}"


def _net(net: Any) -> CaffeNet:
    if net.layers and net.layer:
        raise ValueError("expected layers of one version, received V1 and V2 in one file")
    layers = [_layer(message) for message in net.layers or net.layer if _in_test(message)]
    inputs: dict[str, list[int]] = {}
    for place, name in enumerate(net.input):
        if net.input_shape:
            inputs[name] = list(net.input_shape[place].dim)
        else:
            inputs[name] = list(net.input_dim[4 * place : 4 * place + 4])
    for layer in layers:
        if layer.type == "Input":
            shapes = layer.message.input_param.shape
            for place, top in enumerate(layer.tops):
                inputs[top] = list(shapes[min(place, len(shapes) - 1)].dim)
    return CaffeNet(layers, inputs)


def _layer(message: Any) -> CaffeLayer:
    kind = message.type
    if not isinstance(kind, str):
        old = ENUMS["V1LayerType"].split()[kind]
        kind = V1_NAMES.get(old, "".join(word.capitalize() for word in old.split("_")))
    blobs = [_array(blob) for blob in message.blobs]
    return CaffeLayer(
        tf_name(message.name), kind, list(message.bottom), list(message.top), message, blobs
    )


def _in_test(message: Any) -> bool:
    if any(rule.HasField("phase") and rule.phase == TEST for rule in message.exclude):
        return False
    rules = [rule for rule in message.include if rule.HasField("phase")]
    return not rules or any(rule.phase == TEST for rule in rules)


def _array(blob: Any) -> np.ndarray:
    data = np.array(blob.data or blob.double_data, np.float32)
    if blob.HasField("shape"):
        shape = list(blob.shape.dim)
    else:
        shape = [blob.num, blob.channels, blob.height, blob.width]
    if data.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"expected a blob of shape {shape}, received {data.size} numbers")
    return data.reshape(shape)

"""Caffe networks: their two files read, their weights by name, and a tower function for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.export.foreign.caffe_layers import (
    FLAT,
    LAYERS,
    UNKNOWN,
    WEIGHT_NAMES,
    CaffeLayer,
    channels_after,
    layer_weights,
)
from towerpack.export.foreign.caffe_messages import ENUMS, net_class
from towerpack.tower import TowerFunc

TEST = 1  # the phase
# Layers for training and for Caffe's own data, which a tower for inference does not need.
LEFT_OUT = ("Accuracy", "Input", "Silence")
LEFT_OUT_ENDINGS = ("Data", "Loss")
# Types of V1 layers whose names are not simply capitalized: INNER_PRODUCT is InnerProduct.
V1_NAMES = {
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "LRN": "LRN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}

Shapes = Mapping[str, Sequence[int]]


@dataclass
class CaffeNet:
    """Layers in order, and the inputs with their shapes, batch first and channels second."""

    layers: list[CaffeLayer]
    inputs: dict[str, list[int]]

    def variable_scopes(self) -> dict[str, str]:
        """For each layer the name of its variables: a Scale that follows a BatchNorm shares its."""
        scopes: dict[str, str] = {}
        last: dict[str, CaffeLayer] = {}
        for layer in self.layers:
            before = last.get(layer.bottoms[0]) if layer.bottoms else None
            scopes[layer.name] = layer.name
            if layer.type == "Scale" and before is not None and before.type == "BatchNorm":
                scopes[layer.name] = before.name
            last.update(dict.fromkeys(layer.tops, layer))
        return scopes

    def channels(self) -> dict[str, int]:
        """The number of channels of each blob that is an image; FLAT or UNKNOWN for the others.

        A blob that several layers write in place has the same number after each of them.
        """
        found = {name: shape[1] if len(shape) == 4 else FLAT for name, shape in self.inputs.items()}
        for layer in self.layers:
            if layer.bottoms:
                given = [found.get(bottom, UNKNOWN) for bottom in layer.bottoms]
                found.update(zip(layer.tops, channels_after(layer, given), strict=True))
        return found


def load_caffe(
    prototxt: str | Path, caffemodel: str | Path, input_shapes: Shapes | None = None
) -> dict[str, np.ndarray]:
    """The weights of a Caffe model by name, in the order of channels-last layers.

    | layer | names | order |
    | --- | --- | --- |
    | Convolution | `W`, `b` | HWIO |
    | Deconvolution | `W`, `b` | HW, out, in |
    | InnerProduct | `W`, `b` | in x out; the inputs of an image are HWC instead of CHW |
    | BatchNorm | `mean/EMA`, `variance/EMA` | divided by Caffe's factor |
    | Scale | `gamma`, `beta` | under the name of the BatchNorm that it follows, if it does |
    | PReLU | `alpha` | |

    Neither Caffe nor protoc is needed. The result can be given to `SmartInit`; the tower of
    `caffe_to_tower` has the same names. A warning names layers of other types that have weights.
    `input_shapes` is for networks that declare no inputs, as in `caffe_to_tower`.
    """
    net = read_prototxt(prototxt)
    net.inputs.update({name: list(shape) for name, shape in (input_shapes or {}).items()})
    blobs = {layer.name: layer.blobs for layer in read_caffemodel(caffemodel).layers}
    channels, scopes = net.channels(), net.variable_scopes()
    values: dict[str, np.ndarray] = {}
    unknown = []
    for layer in net.layers:
        layer.blobs = blobs.get(layer.name, [])
        if layer.blobs and layer.type not in WEIGHT_NAMES:
            unknown.append(f"{layer.name} ({layer.type})")
        elif layer.blobs:
            found = layer_weights(layer, channels.get(layer.bottoms[0], UNKNOWN))
            values.update({f"{scopes[layer.name]}/{name}": x for name, x in found.items()})
    if unknown:
        logger.warning("the weights of these layers are left out: %s", ", ".join(unknown))
    return values


def caffe_to_tower(prototxt: str | Path, input_shapes: Shapes | None = None) -> TowerFunc:
    """The network of a `.prototxt` as a tower function, channels last, with any batch size.

    Its inputs are the network's, [batch, height, width, channels] where Caffe has channels second.
    The result of layer `L` is the tensor `L/output`; its variables have the names of `load_caffe`:

        tower = caffe_to_tower("deploy.prototxt")
        weights = load_caffe("deploy.prototxt", "net.caffemodel")
        config = PredictConfig(tower_func=tower, output_names=["prob/output"], session_init=weights)

    `input_shapes` adds or replaces shapes of inputs, in Caffe's order. Layers for training (losses,
    accuracy) are left out. Layers of unknown types raise an error that names all of them.
    """
    net = read_prototxt(prototxt)
    net.inputs.update({name: list(shape) for name, shape in (input_shapes or {}).items()})
    if not net.inputs:
        raise ValueError(
            f"{prototxt} declares no inputs: pass input_shapes={{'data': [1, 3, 224, 224]}}"
        )
    layers = [
        layer
        for layer in net.layers
        if layer.type not in LEFT_OUT and not layer.type.endswith(LEFT_OUT_ENDINGS)
    ]
    unknown = {f"{layer.type} ({layer.name})" for layer in layers if layer.type not in LAYERS}
    if unknown:
        raise ValueError(
            f"expected layers of {sorted(LAYERS)} in {prototxt}, received also "
            f"{', '.join(sorted(unknown))}; remove them from the file, or write that part as a "
            "tower function"
        )
    scopes = net.variable_scopes()

    def tower(*inputs: Any) -> dict[str, Any]:
        tensors = dict(zip(net.inputs, inputs, strict=True))
        for layer in layers:
            given = [tensors[bottom] for bottom in layer.bottoms]
            try:
                made = LAYERS[layer.type](layer, given, scopes[layer.name])
            except Exception as error:
                error.add_note(f"in the Caffe layer {layer.name!r} ({layer.type})")
                raise
            made = made if isinstance(made, list) else [made]
            for place, (top, tensor) in enumerate(zip(layer.tops, made, strict=True)):
                name = f"{layer.name}/output" + (f"_{place}" if place else "")
                tensors[top] = tf.identity(tensor, name=name)
        return tensors

    return TowerFunc(tower, [_spec(name, shape) for name, shape in net.inputs.items()])


def _spec(name: str, shape: list[int]) -> Any:
    _, *dims = shape
    if len(dims) == 3:
        dims = [*dims[1:], dims[0]]
    return tf.TensorSpec([None, *dims], tf.float32, _tf_name(name).replace("/", "_"))


def read_prototxt(path: str | Path) -> CaffeNet:
    """The network of a `.prototxt` file, as it is in the test phase."""
    text_format = require("google.protobuf.text_format", extra="protobuf")
    net = net_class()()
    try:
        text_format.Parse(Path(path).read_text(), net, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ValueError(f"expected a network in {path}: {error}") from error
    return _net(net)


def read_caffemodel(path: str | Path) -> CaffeNet:
    """The layers of a `.caffemodel` file, with their weights."""
    message = require("google.protobuf.message", extra="protobuf")
    net = net_class()()
    try:
        net.ParseFromString(Path(path).read_bytes())
    except message.DecodeError as error:
        raise ValueError(f"expected a caffemodel in {path}: {error}") from error
    return _net(net)


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
        _tf_name(message.name), kind, list(message.bottom), list(message.top), message, blobs
    )


def _tf_name(name: str) -> str:
    """A layer's name with the characters that TensorFlow allows.

    >>> _tf_name("conv1(a)/3x3")
    'conv1_a_/3x3'
    """
    name = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name)
    return name if re.match(r"[A-Za-z0-9.]", name) else f"l{name}"


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

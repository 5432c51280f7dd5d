"""The weights of a Caffe network as towerpack names and orders them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.export.foreign.caffe_net import (
    CaffeLayer,
    CaffeNet,
    read_caffemodel,
    read_prototxt,
)

# Instead of a number of channels: the blob is no image any more, or nobody can tell.
FLAT, UNKNOWN = 0, -1


def load_caffe(
    prototxt: str | Path,
    caffemodel: str | Path,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, np.ndarray]:
    """The weights in a Caffe model, by name, in the order of channels-last layers.

    | layer | names | order |
    | --- | --- | --- |
    | Convolution | `W`, `b` | HWIO |
    | Deconvolution | `W`, `b` | HW, out, in |
    | InnerProduct | `W`, `b` | in x out; the inputs of an image go HWC instead of CHW |
    | BatchNorm | `mean/EMA`, `variance/EMA` | divided by Caffe's factor |
    | Scale | `gamma`, `beta` | under the name of the BatchNorm that it follows, if it does |
    | PReLU | `alpha` | |

    Neither Caffe nor protoc is needed. The result can be given to `SmartInit`; the tower of
    `caffe_to_tower` has the same names. Layers of other types with weights are named in a warning.
    `input_shapes` are for networks that declare no inputs, as in `caffe_to_tower`.
    """
    net, stored = read_prototxt(prototxt), read_caffemodel(caffemodel)
    net.inputs.update({name: list(shape) for name, shape in (input_shapes or {}).items()})
    blobs = {layer.name: layer.blobs for layer in stored.layers}
    for layer in net.layers:
        layer.blobs = blobs.get(layer.name, [])
    channels = channels_of(net)
    owners = scale_owners(net)
    values: dict[str, np.ndarray] = {}
    unknown = []
    for layer in net.layers:
        if not layer.blobs:
            continue
        if layer.type not in _READERS:
            unknown.append(f"{layer.name} ({layer.type})")
            continue
        found = _READERS[layer.type](layer, channels.get(layer.bottoms[0], UNKNOWN))
        owner = owners.get(layer.name, layer.name)
        values.update({f"{owner}/{name}": value for name, value in found.items()})
    if unknown:
        logger.warning("weights of these layers are left out: %s", ", ".join(unknown))
    return values


def channels_of(net: CaffeNet) -> dict[str, int]:
    """The number of channels of each blob that is an image; FLAT or UNKNOWN for the others.

    Blobs that several layers write in place keep the last one's, which is what all of them have.
    """
    channels = {name: shape[1] if len(shape) == 4 else FLAT for name, shape in net.inputs.items()}
    for layer in net.layers:
        if layer.bottoms:
            given = [channels.get(bottom, UNKNOWN) for bottom in layer.bottoms]
            channels.update(zip(layer.tops, _channels_after(layer, given), strict=True))
    return channels


def _channels_after(layer: CaffeLayer, given: list[int]) -> list[int]:
    """The channels of each top of a layer, from those of its bottoms."""
    out = given[0]
    if layer.type in ("Convolution", "Deconvolution"):
        out = layer.message.convolution_param.num_output
    elif layer.type in ("InnerProduct", "Flatten"):
        out = FLAT
    elif layer.type == "Reshape":
        out = _channels_after_reshape(layer.message.reshape_param, out)
    elif layer.type == "Concat" and _channel_axis(layer.message.concat_param, "concat_dim"):
        out = UNKNOWN if UNKNOWN in given else sum(given)
    elif layer.type == "Slice" and out not in (FLAT, UNKNOWN):
        return _channels_after_slice(layer, out)
    return [out] * len(layer.tops)


def _channels_after_slice(layer: CaffeLayer, channels: int) -> list[int]:
    parameters, count = layer.message.slice_param, len(layer.tops)
    if not _channel_axis(parameters, "slice_dim"):
        return [channels] * count
    points = list(parameters.slice_point) or [channels * i // count for i in range(1, count)]
    sizes: list[int] = np.diff([0, *points, channels]).tolist()
    return sizes


def _channels_after_reshape(parameters: Any, channels: int) -> int:
    dims = list(parameters.shape.dim)
    if parameters.axis != 0 or parameters.num_axes != -1:
        return UNKNOWN  # it depends on the number of axes before
    if len(dims) != 4:
        return FLAT
    if dims[1] == 0 and channels != FLAT:
        return channels
    return dims[1] if dims[1] > 0 else UNKNOWN


def scale_owners(net: CaffeNet) -> dict[str, str]:
    """For each Scale layer right behind a BatchNorm, the name of that BatchNorm."""
    last: dict[str, CaffeLayer] = {}
    owners = {}
    for layer in net.layers:
        before = last.get(layer.bottoms[0]) if layer.bottoms else None
        if layer.type == "Scale" and before is not None and before.type == "BatchNorm":
            owners[layer.name] = before.name
        last.update(dict.fromkeys(layer.tops, layer))
    return owners


def _channel_axis(parameters: Any, old_name: str) -> bool:
    if parameters.HasField(old_name):
        return bool(getattr(parameters, old_name) == 1)
    return parameters.axis in (1, -3)


def _convolution(layer: CaffeLayer, channels: int) -> dict[str, np.ndarray]:
    values = {"W": layer.blobs[0].transpose(2, 3, 1, 0)}
    if len(layer.blobs) > 1:
        values["b"] = layer.blobs[1].reshape(-1)
    return values


def _inner_product(layer: CaffeLayer, channels: int) -> dict[str, np.ndarray]:
    if channels == UNKNOWN:
        raise ValueError(
            f"expected to know the shape that {layer.bottoms[0]!r} has where the layer "
            f"{layer.name!r} reads it, which its weights are ordered by; declare the network's "
            "inputs, or pass input_shapes={'data': [1, 3, 224, 224]}"
        )
    out, size = layer.blobs[0].shape[-2:]  # V1 files have two axes of one before these
    weights = layer.blobs[0].reshape(out, size)
    if layer.message.inner_product_param.transpose:
        weights, out, size = weights.T, size, out
    if channels:
        by_place = weights.reshape(out, channels, size // channels).transpose(0, 2, 1)
        weights = by_place.reshape(out, size)
    values = {"W": np.ascontiguousarray(weights.T)}
    if len(layer.blobs) > 1:
        values["b"] = layer.blobs[1].reshape(-1)
    return values


def _batch_norm(layer: CaffeLayer, channels: int) -> dict[str, np.ndarray]:
    mean, variance, factor = (blob.reshape(-1) for blob in layer.blobs)
    scale = np.float32(0 if factor[0] == 0 else 1 / factor[0])
    return {"mean/EMA": mean * scale, "variance/EMA": variance * scale}


def _scale(layer: CaffeLayer, channels: int) -> dict[str, np.ndarray]:
    values = {"gamma": layer.blobs[0].reshape(-1)}
    if len(layer.blobs) > 1:
        values["beta"] = layer.blobs[1].reshape(-1)
    return values


_READERS: dict[str, Callable[[CaffeLayer, int], dict[str, np.ndarray]]] = {
    "BatchNorm": _batch_norm,
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "InnerProduct": _inner_product,
    "PReLU": lambda layer, _: {"alpha": layer.blobs[0].reshape(-1)},
    "Scale": _scale,
}

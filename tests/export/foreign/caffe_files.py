"""Networks in Caffe's own formats, written by these tests, and Caffe's definitions in numpy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from towerpack.export.foreign.caffe import net_class


def write_net(directory: Path, text: str, blobs: dict[str, list[np.ndarray]]) -> tuple[Path, Path]:
    """A prototxt with this text, and a caffemodel of the same layers with these weights."""
    prototxt, caffemodel = directory / "net.prototxt", directory / "net.caffemodel"
    prototxt.write_text(text)
    net = net_class()()
    text_format.Parse(text, net, allow_unknown_field=True)
    for layer in list(net.layer) + list(net.layers):
        for array in blobs.get(layer.name, []):
            blob = layer.blobs.add(data=array.ravel().tolist())
            if net.layers:  # as files of that time have it
                blob.num, blob.channels, blob.height, blob.width = (1,) * (
                    4 - array.ndim
                ) + array.shape
            else:
                blob.shape.dim.extend(array.shape)
    caffemodel.write_bytes(net.SerializeToString())
    return prototxt, caffemodel


def convolve(x, w, b=None, stride=1, pad=0, group=1, dilation=1):
    """Caffe's Convolution: NCHW, weights [out, in / group, kh, kw]."""
    n, _, height, width = x.shape
    out, per_group, kh, kw = w.shape
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    oh = (height + 2 * pad - (dilation * (kh - 1) + 1)) // stride + 1
    ow = (width + 2 * pad - (dilation * (kw - 1) + 1)) // stride + 1
    y = np.zeros((n, out, oh, ow))
    for o in range(out):
        first = o // (out // group) * per_group
        for i in range(oh):
            for j in range(ow):
                window = x[
                    :,
                    first : first + per_group,
                    i * stride : i * stride + dilation * (kh - 1) + 1 : dilation,
                    j * stride : j * stride + dilation * (kw - 1) + 1 : dilation,
                ]
                y[:, o, i, j] = (window * w[o]).sum(axis=(1, 2, 3)) + (0 if b is None else b[o])
    return y


def deconvolve(x, w, b=None, stride=1, pad=0, group=1):
    """Caffe's Deconvolution: weights [in, out / group, kh, kw]."""
    n, channels, height, width = x.shape
    _, per_group, kh, kw = w.shape
    (sh, sw), (ph, pw) = both(stride), both(pad)
    y = np.zeros((n, per_group * group, sh * (height - 1) + kh, sw * (width - 1) + kw))
    for c in range(channels):
        first = c // (channels // group) * per_group
        for i in range(height):
            for j in range(width):
                y[
                    :,
                    first : first + per_group,
                    i * sh : i * sh + kh,
                    j * sw : j * sw + kw,
                ] += x[:, c, i, j][:, None, None, None] * w[c]
    y = y[:, :, ph : y.shape[2] - ph, pw : y.shape[3] - pw]
    return y if b is None else y + b[None, :, None, None]


def both(value):
    return value if isinstance(value, tuple) else (value, value)


def pool(x, kind, kernel, stride=1, pad=0, rounded=math.ceil):
    """Caffe's Pooling, window by window; numbers, or pairs of height and width."""
    (kh, kw), (sh, sw), (ph, pw) = both(kernel), both(stride), both(pad)
    n, c, height, width = x.shape
    oh = rounded((height + 2 * ph - kh) / sh) + 1
    ow = rounded((width + 2 * pw - kw) / sw) + 1
    if ph or pw:  # the last window must begin within the image
        oh -= (oh - 1) * sh >= height + ph
        ow -= (ow - 1) * sw >= width + pw
    y = np.zeros((n, c, oh, ow))
    for i in range(oh):
        for j in range(ow):
            top, left = i * sh - ph, j * sw - pw
            bottom, right = min(top + kh, height + ph), min(left + kw, width + pw)
            size = (bottom - top) * (right - left)
            window = x[:, :, max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
            if kind == "MAX":
                y[:, :, i, j] = window.max(axis=(2, 3))
            else:
                y[:, :, i, j] = window.sum(axis=(2, 3)) / size
    return y


def lrn_across(x, size=5, alpha=1.0, beta=0.75, k=1.0):
    squares, y = x**2, np.zeros_like(x)
    half = (size - 1) // 2
    for c in range(x.shape[1]):
        near = squares[:, max(0, c - half) : c + half + 1].sum(axis=1)
        y[:, c] = x[:, c] / (k + alpha / size * near) ** beta
    return y


def softmax(x: Any, axis: int = 1) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)

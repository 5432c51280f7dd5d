"""Pooling with Caffe's rounding: sizes are rounded up, and windows may reach over the edge."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.export.foreign.caffe_net import CaffeLayer

MAX, AVE = 0, 1
FLOOR = 1


def pooling(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.pooling_param
    if p.pool not in (MAX, AVE):
        raise ValueError("expected Pooling by MAX or AVE")
    if p.global_pooling:
        reduce = tf.reduce_max if p.pool == MAX else tf.reduce_mean
        return reduce(x[0], axis=[1, 2], keepdims=True)
    kernel = (p.kernel_h or p.kernel_size, p.kernel_w or p.kernel_size)
    strides = (p.stride_h or p.stride, p.stride_w or p.stride)
    pad = (p.pad_h, p.pad_w) if p.pad_h or p.pad_w else (p.pad, p.pad)
    function = max_pool if p.pool == MAX else average_pool
    return function(x[0], kernel, strides, pad, floor=p.round_mode == FLOOR)


def max_pool(
    x: Any,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pad: tuple[int, int],
    floor: bool = False,
) -> Any:
    padded = tf.pad(
        x,
        _paddings(x, kernel, strides, pad, floor),
        constant_values=x.dtype.min,  # as Caffe has it; a window may hold nothing else
    )
    return tf.nn.max_pool2d(padded, kernel, strides, "VALID")


def average_pool(
    x: Any,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pad: tuple[int, int],
    floor: bool = False,
) -> Any:
    """The sum over a window, by its size within the image and its padding.

    So zeros of the padding count, but what lies behind the padding does not.
    """
    paddings = _paddings(x, kernel, strides, pad, floor)
    means = tf.nn.avg_pool2d(tf.pad(x, paddings), kernel, strides, "VALID")
    rows = _counted(x.shape[1], paddings[1], pad[0])
    columns = _counted(x.shape[2], paddings[2], pad[1])
    counted = (rows[:, np.newaxis] * columns)[np.newaxis, :, :, np.newaxis]
    share = tf.nn.avg_pool2d(counted, kernel, strides, "VALID")
    return tf.math.divide_no_nan(means, tf.cast(share, x.dtype))


def _counted(size: int, padding: list[int], pad: int) -> np.ndarray:
    """1 for each place of a padded line that counts, 0 for those behind Caffe's own padding."""
    places = np.arange(padding[0] + size + padding[1])
    return (places < size + 2 * pad).astype(np.float32)


def _paddings(
    x: Any, kernel: tuple[int, int], strides: tuple[int, int], pad: tuple[int, int], floor: bool
) -> list[list[int]]:
    found = [[0, 0]]
    for size, k, s, p in zip(x.shape[1:3], kernel, strides, pad, strict=True):
        if size is None:
            raise ValueError(f"expected images of a known size for Pooling, received {x.shape}")
        steps = size + 2 * p - k
        out = (steps // s if floor else -(-steps // s)) + 1
        if any(pad) and (out - 1) * s >= size + p:
            out -= 1  # the last window would begin behind the image
        found.append([p, max(0, (out - 1) * s + k - size - p)])
    return [*found, [0, 0]]

"""Caffe's layers, as it defines them, in channels-last order.

Each takes the layer, the tensors of its bottoms, and the name for its variables. Where Caffe counts
axes, images are [batch, channels, height, width].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.export.foreign.caffe_net import CaffeLayer
from towerpack.export.foreign.caffe_pooling import average_pool, pooling
from towerpack.models import Conv2D, FullyConnected
from towerpack.tower import get_current_tower_context

# The place of Caffe's axes in our images, and of ours in Caffe's.
OURS = [0, 3, 1, 2]
TO_CAFFE = [0, 3, 1, 2]
FROM_CAFFE = [0, 2, 3, 1]
PROD, SUM, MAX = range(3)


def our_axis(axis: int, x: Any) -> int:
    """Where Caffe's axis is in this tensor."""
    axis = axis + x.shape.rank if axis < 0 else axis
    return OURS[axis] if x.shape.rank == 4 else axis


def two(repeated: Any, height: int, width: int, default: int) -> tuple[int, int]:
    """Height and width of a setting that can be given in three ways."""
    if height or width:
        return height, width
    values = list(repeated)
    if not values:
        return default, default
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def convolution(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.convolution_param
    pad = two(p.pad, p.pad_h, p.pad_w, 0)
    return Conv2D(
        name,
        tf.pad(x[0], [[0, 0], [pad[0]] * 2, [pad[1]] * 2, [0, 0]]) if any(pad) else x[0],
        p.num_output,
        two(p.kernel_size, p.kernel_h, p.kernel_w, 1),
        strides=two(p.stride, p.stride_h, p.stride_w, 1),
        padding="valid",
        dilation_rate=two(p.dilation, 0, 0, 1),
        use_bias=p.bias_term,
        split=p.group,
    )


def deconvolution(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.convolution_param
    if two(p.dilation, 0, 0, 1) != (1, 1):
        raise ValueError("expected a Deconvolution without dilation")
    kernel = two(p.kernel_size, p.kernel_h, p.kernel_w, 1)
    strides = two(p.stride, p.stride_h, p.stride_w, 1)
    top, left = two(p.pad, p.pad_h, p.pad_w, 0)
    _, height, width, channels = x[0].shape
    full = [strides[0] * (height - 1) + kernel[0], strides[1] * (width - 1) + kernel[1]]
    with v1.variable_scope(name):
        weights = v1.get_variable("W", [*kernel, p.num_output // p.group, channels])
        parts = [
            tf.nn.conv2d_transpose(
                part,
                part_weights,
                [tf.shape(part)[0], *full, p.num_output // p.group],
                strides,
                padding="VALID",
            )
            for part, part_weights in zip(
                tf.split(x[0], p.group, axis=3), tf.split(weights, p.group, axis=3), strict=True
            )
        ]
        y = tf.concat(parts, axis=3)[:, top : full[0] - top, left : full[1] - left]
        if p.bias_term:
            y += v1.get_variable("b", [p.num_output], initializer=v1.zeros_initializer())
    return y


def inner_product(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.inner_product_param
    if p.axis != 1:
        raise ValueError(f"expected an InnerProduct over axis 1, received {p.axis}")
    return FullyConnected(name, x[0], p.num_output, use_bias=p.bias_term)


def lrn(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.lrn_param
    if p.local_size % 2 == 0:
        raise ValueError(f"expected an odd local_size, as Caffe does, received {p.local_size}")
    if p.norm_region == 0:  # Caffe divides alpha by the size; TensorFlow does not
        return tf.nn.local_response_normalization(
            x[0], (p.local_size - 1) // 2, p.k, p.alpha / p.local_size, p.beta
        )
    squares = average_pool(x[0] ** 2, (p.local_size,) * 2, (1, 1), ((p.local_size - 1) // 2,) * 2)
    return x[0] * (1 + p.alpha * squares) ** -p.beta


def relu(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    slope = layer.message.relu_param.negative_slope
    return tf.nn.leaky_relu(x[0], slope) if slope else tf.nn.relu(x[0])


def prelu(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    size = 1 if layer.message.prelu_param.channel_shared else x[0].shape[-1]
    with v1.variable_scope(name):
        alpha = v1.get_variable("alpha", [size], initializer=v1.constant_initializer(0.25))
    return tf.maximum(x[0], 0) + alpha * tf.minimum(x[0], 0)


def batch_norm(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    """With the stored statistics, as in Caffe's test phase; also when the tower is trained."""
    size = [x[0].shape[-1]]
    with v1.variable_scope(name):
        mean = v1.get_variable(
            "mean/EMA", size, initializer=v1.zeros_initializer(), trainable=False
        )
        variance = v1.get_variable(
            "variance/EMA", size, initializer=v1.ones_initializer(), trainable=False
        )
    return (x[0] - mean) * tf.math.rsqrt(variance + layer.message.batch_norm_param.eps)


def scale(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.scale_param
    if len(x) != 1 or p.axis != 1 or p.num_axes != 1:
        raise ValueError("expected a Scale with one bottom, over the channels")
    size = [x[0].shape[-1]]
    with v1.variable_scope(name):
        y = x[0] * v1.get_variable("gamma", size, initializer=v1.ones_initializer())
        if p.bias_term:
            y += v1.get_variable("beta", size, initializer=v1.zeros_initializer())
    return y


def eltwise(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.eltwise_param
    if p.operation == PROD:
        return tf.math.reduce_prod(tf.stack(x), axis=0)
    if p.operation == MAX:
        return tf.math.reduce_max(tf.stack(x), axis=0)
    coefficients = list(p.coeff) or [1.0] * len(x)
    return tf.add_n([c * part for c, part in zip(coefficients, x, strict=True)])


def concat(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.concat_param
    axis = p.concat_dim if p.HasField("concat_dim") else p.axis
    return tf.concat(x, our_axis(axis, x[0]))


def slice_(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.slice_param
    axis = our_axis(p.slice_dim if p.HasField("slice_dim") else p.axis, x[0])
    if not p.slice_point:
        return tf.split(x[0], len(layer.tops), axis=axis)
    points = [0, *p.slice_point, x[0].shape[axis]]
    return tf.split(x[0], np.diff(points).tolist(), axis=axis)


def crop(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    """The first bottom, cut to the size of the second along Caffe's axis and all behind it."""
    p = layer.message.crop_param
    rank = x[0].shape.rank
    axes = range(p.axis % rank, rank)
    offsets = list(p.offset) or [0]
    offsets = offsets * len(axes) if len(offsets) == 1 else offsets
    begin, size = [0] * rank, [-1] * rank
    for axis, offset in zip(axes, offsets, strict=True):
        place = our_axis(axis, x[0])
        begin[place], size[place] = offset, x[1].shape[place] or -1  # -1: a batch keeps its size
    return tf.slice(x[0], begin, size)


def dropout(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    context = get_current_tower_context()
    if context is None or not context.is_training:
        return x[0]
    return tf.nn.dropout(x[0], layer.message.dropout_param.dropout_ratio)


def softmax(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    return tf.nn.softmax(x[0], axis=our_axis(layer.message.softmax_param.axis, x[0]))


def flatten(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.flatten_param
    rank = x[0].shape.rank
    first, last = p.axis % rank, p.end_axis % rank
    if first == 0:
        raise ValueError("expected a Flatten that keeps the batch axis")
    dims = x[0].shape.as_list() if rank != 4 else [x[0].shape[i] for i in TO_CAFFE]
    merged = int(np.prod(dims[first : last + 1]))
    return _reshaped(x[0], [-1, *dims[1:first], merged, *dims[last + 1 :]])


def reshape(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.reshape_param
    rank = x[0].shape.rank
    dims = x[0].shape.as_list() if rank != 4 else [x[0].shape[i] for i in TO_CAFFE]
    start = p.axis if p.axis >= 0 else p.axis + rank + 1
    end = rank if p.num_axes == -1 else start + p.num_axes
    asked = list(p.shape.dim)
    wanted = [dims[start + i] if d == 0 else d for i, d in enumerate(asked)]
    shape = [*dims[:start], *wanted, *dims[end:]]
    if shape[0] is not None and start == 0:
        raise ValueError("expected a Reshape that keeps the batch axis: a first dim of 0")
    rest = shape[1:]
    if rest.count(-1):
        known = int(np.prod([d for d in rest if d != -1]))
        rest[rest.index(-1)] = int(np.prod(dims[1:])) // known
    return _reshaped(x[0], [-1, *rest])


def _reshaped(x: Any, shape: list[int]) -> Any:
    """Reshaped as Caffe's memory is ordered, channels before height and width."""
    x = tf.transpose(x, TO_CAFFE) if x.shape.rank == 4 else x
    x = tf.reshape(x, shape)
    return tf.transpose(x, FROM_CAFFE) if len(shape) == 4 else x


def power(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.power_param
    y = p.shift + p.scale * x[0]
    return y if p.power == 1 else y**p.power


def elu(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    return tf.where(x[0] > 0, x[0], layer.message.elu_param.alpha * tf.math.expm1(x[0]))


def split(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    return x * len(layer.tops)


LAYERS: dict[str, Callable[[CaffeLayer, list[Any], str], Any]] = {
    "AbsVal": lambda layer, x, name: tf.abs(x[0]),
    "BatchNorm": batch_norm,
    "Concat": concat,
    "Convolution": convolution,
    "Crop": crop,
    "Deconvolution": deconvolution,
    "Dropout": dropout,
    "ELU": elu,
    "Eltwise": eltwise,
    "Flatten": flatten,
    "InnerProduct": inner_product,
    "LRN": lrn,
    "PReLU": prelu,
    "Pooling": pooling,
    "Power": power,
    "ReLU": relu,
    "Reshape": reshape,
    "Scale": scale,
    "Sigmoid": lambda layer, x, name: tf.sigmoid(x[0]),
    "Slice": slice_,
    "Softmax": softmax,
    "Split": split,
    "TanH": lambda layer, x, name: tf.tanh(x[0]),
}

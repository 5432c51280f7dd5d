"""Caffe's layers in channels-last order: how each is built, and where its weights go.

Where Caffe counts axes, images are [batch, channels, height, width].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.models import Conv2D, FullyConnected
from towerpack.tower import get_current_tower_context

# For each axis of Caffe's images its place in ours, and the other way round.
TO_CAFFE, FROM_CAFFE = [0, 3, 1, 2], [0, 2, 3, 1]
# In place of a number of channels: the blob is not an image, or its shape is not known.
FLAT, UNKNOWN = 0, -1
# Values of Caffe's enums.
POOL_MAX, POOL_AVERAGE = 0, 1
ROUND_DOWN = 1
ACROSS_CHANNELS = 0
PROD, SUM, MAX = range(3)

# The variables of each type of layer, in the order of Caffe's blobs.
WEIGHT_NAMES = {
    "BatchNorm": ("mean/EMA", "variance/EMA"),
    "Convolution": ("W", "b"),
    "Deconvolution": ("W", "b"),
    "InnerProduct": ("W", "b"),
    "PReLU": ("alpha",),
    "Scale": ("gamma", "beta"),
}

Pair = tuple[int, int]


@dataclass
class CaffeLayer:
    """One layer: `message` has its parameters, `blobs` its weights in Caffe's order."""

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    message: Any
    blobs: list[np.ndarray] = field(default_factory=list)


def layer_weights(layer: CaffeLayer, channels: int) -> dict[str, np.ndarray]:
    """The weights of a layer by name; `channels` are those of its first bottom."""
    arrays = list(layer.blobs)
    if layer.type in ("Convolution", "Deconvolution"):
        arrays[0] = arrays[0].transpose(2, 3, 1, 0)
    elif layer.type == "InnerProduct":
        arrays[0] = _inner_product_weights(layer, channels)
    elif layer.type == "BatchNorm":
        *statistics, factor = arrays
        scale = np.float32(0 if factor.flat[0] == 0 else 1 / factor.flat[0])
        arrays = [array * scale for array in statistics]
    return {
        name: array if name == "W" else array.reshape(-1)
        for name, array in zip(WEIGHT_NAMES[layer.type], arrays, strict=False)
    }


def _inner_product_weights(layer: CaffeLayer, channels: int) -> np.ndarray:
    if channels == UNKNOWN:
        raise ValueError(
            f"expected to know the shape that {layer.bottoms[0]!r} has where the layer "
            f"{layer.name!r} reads it, because the order of its weights depends on it; declare the "
            "network's inputs, or pass input_shapes={'data': [1, 3, 224, 224]}"
        )
    out, size = layer.blobs[0].shape[-2:]  # V1 files have two axes of one before these
    weights = layer.blobs[0].reshape(out, size)
    if layer.message.inner_product_param.transpose:
        weights, out, size = weights.T, size, out
    if channels:  # CHW to HWC
        by_place = weights.reshape(out, channels, size // channels).transpose(0, 2, 1)
        weights = by_place.reshape(out, size)
    return np.ascontiguousarray(weights.T)


def channels_after(layer: CaffeLayer, given: list[int]) -> list[int]:
    """The channels of each top of a layer, from those of its bottoms."""
    channels, message = given[0], layer.message
    if layer.type in ("Convolution", "Deconvolution"):
        channels = message.convolution_param.num_output
    elif layer.type in ("InnerProduct", "Flatten"):
        channels = FLAT
    elif layer.type == "Reshape":
        channels = _channels_after_reshape(message.reshape_param, channels)
    elif layer.type == "Concat" and _axis(message.concat_param, "concat_dim") in (1, -3):
        channels = UNKNOWN if UNKNOWN in given else sum(given)
    elif layer.type == "Slice" and channels not in (FLAT, UNKNOWN):
        p, count = message.slice_param, len(layer.tops)
        if _axis(p, "slice_dim") in (1, -3):
            points = list(p.slice_point) or [channels * i // count for i in range(1, count)]
            sizes: list[int] = np.diff([0, *points, channels]).tolist()
            return sizes
    return [channels] * len(layer.tops)


def _channels_after_reshape(p: Any, channels: int) -> int:
    dims = list(p.shape.dim)
    if p.axis != 0 or p.num_axes != -1:
        return UNKNOWN  # it depends on the number of axes before
    if len(dims) != 4:
        return FLAT
    if dims[1] == 0 and channels != FLAT:
        return channels
    return dims[1] if dims[1] > 0 else UNKNOWN


def _axis(p: Any, old_name: str) -> int:
    axis: int = getattr(p, old_name) if p.HasField(old_name) else p.axis
    return axis


def _our_axis(axis: int, x: Any) -> int:
    """Where Caffe's axis is in this tensor."""
    axis = axis + x.shape.rank if axis < 0 else axis
    return TO_CAFFE[axis] if x.shape.rank == 4 else axis


def _caffe_shape(x: Any) -> list[Any]:
    dims: list[Any] = x.shape.as_list()
    return [dims[place] for place in TO_CAFFE] if len(dims) == 4 else dims


def _pair(both: Any, height: int = 0, width: int = 0, default: int = 1) -> Pair:
    """Height and width of a setting given as one number, one or two numbers, or separately."""
    values = [both] if isinstance(both, int) else list(both) or [default]
    return height or values[0], width or values[-1]


def _variable(name: str, shape: list[int], start: float | None, trainable: bool = True) -> Any:
    initializer = None if start is None else v1.constant_initializer(start)
    return v1.get_variable(name, shape, initializer=initializer, trainable=trainable)


def _convolution(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.convolution_param
    pad = _pair(p.pad, p.pad_h, p.pad_w, default=0)
    return Conv2D(
        name,
        tf.pad(x[0], [[0, 0], [pad[0]] * 2, [pad[1]] * 2, [0, 0]]) if any(pad) else x[0],
        p.num_output,
        _pair(p.kernel_size, p.kernel_h, p.kernel_w),
        strides=_pair(p.stride, p.stride_h, p.stride_w),
        padding="valid",
        dilation_rate=_pair(p.dilation),
        use_bias=p.bias_term,
        split=p.group,
    )


def _deconvolution(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.convolution_param
    if _pair(p.dilation) != (1, 1):
        raise ValueError("expected a Deconvolution without dilation")
    kernel = _pair(p.kernel_size, p.kernel_h, p.kernel_w)
    strides = _pair(p.stride, p.stride_h, p.stride_w)
    top, left = _pair(p.pad, p.pad_h, p.pad_w, default=0)
    _, height, width, channels = x[0].shape
    full = [strides[0] * (height - 1) + kernel[0], strides[1] * (width - 1) + kernel[1]]
    out = p.num_output // p.group
    weights = _variable(f"{name}/W", [*kernel, out, channels], None)
    groups = zip(tf.split(x[0], p.group, axis=3), tf.split(weights, p.group, axis=3), strict=True)
    parts = [
        tf.nn.conv2d_transpose(part, w, [tf.shape(part)[0], *full, out], strides, padding="VALID")
        for part, w in groups
    ]
    y = tf.concat(parts, axis=3)[:, top : full[0] - top, left : full[1] - left]
    return y + _variable(f"{name}/b", [p.num_output], 0) if p.bias_term else y


def _inner_product(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.inner_product_param
    if p.axis != 1:
        raise ValueError(f"expected an InnerProduct over axis 1, received {p.axis}")
    return FullyConnected(name, x[0], p.num_output, use_bias=p.bias_term)


def _pooling(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.pooling_param
    if p.pool not in (POOL_MAX, POOL_AVERAGE):
        raise ValueError("expected Pooling by MAX or AVE")
    if p.global_pooling:
        reduce = tf.reduce_max if p.pool == POOL_MAX else tf.reduce_mean
        return reduce(x[0], axis=[1, 2], keepdims=True)
    kernel = _pair(p.kernel_size, p.kernel_h, p.kernel_w)
    strides = _pair(p.stride, p.stride_h, p.stride_w)
    pad = _pair(p.pad, p.pad_h, p.pad_w)
    pool = _max_pool if p.pool == POOL_MAX else _average_pool
    return pool(x[0], kernel, strides, pad, round_down=p.round_mode == ROUND_DOWN)


def _max_pool(x: Any, kernel: Pair, strides: Pair, pad: Pair, round_down: bool = False) -> Any:
    paddings = _paddings(x, kernel, strides, pad, round_down)
    # Caffe's own starting value, which remains where a window lies outside of the image.
    padded = tf.pad(x, paddings, constant_values=x.dtype.min)
    return tf.nn.max_pool2d(padded, kernel, strides, "VALID")


def _average_pool(x: Any, kernel: Pair, strides: Pair, pad: Pair, round_down: bool = False) -> Any:
    """The sum over a window, divided by the size that it has within the image and its padding.

    Zeros of the padding count, but what lies beyond the padding does not.
    """
    paddings = _paddings(x, kernel, strides, pad, round_down)
    means = tf.nn.avg_pool2d(tf.pad(x, paddings), kernel, strides, "VALID")
    rows, columns = (
        (np.arange(sum(paddings[axis]) + x.shape[axis]) < x.shape[axis] + 2 * pad[axis - 1])
        for axis in (1, 2)
    )
    counted = np.outer(rows, columns).astype(np.float32)[np.newaxis, :, :, np.newaxis]
    share = tf.nn.avg_pool2d(counted, kernel, strides, "VALID")
    return tf.math.divide_no_nan(means, tf.cast(share, x.dtype))


def _paddings(
    x: Any, kernel: Pair, strides: Pair, pad: Pair, round_down: bool
) -> list[tuple[int, int]]:
    """Paddings for Caffe's rounding: sizes are rounded up, and windows may reach over the edge."""
    found = []
    for size, k, s, p in zip(x.shape[1:3], kernel, strides, pad, strict=True):
        if size is None:
            raise ValueError(f"expected images of a known size for Pooling, received {x.shape}")
        steps = size + 2 * p - k
        out = (steps // s if round_down else -(-steps // s)) + 1
        if any(pad) and (out - 1) * s >= size + p:
            out -= 1  # the last window would begin after the image
        found.append((p, max(0, (out - 1) * s + k - size - p)))
    return [(0, 0), *found, (0, 0)]


def _lrn(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.lrn_param
    if p.local_size % 2 == 0:
        raise ValueError(f"expected an odd local_size, as Caffe does, received {p.local_size}")
    radius = (p.local_size - 1) // 2
    if p.norm_region == ACROSS_CHANNELS:  # Caffe divides alpha by the size; TensorFlow does not
        return tf.nn.local_response_normalization(x[0], radius, p.k, p.alpha / p.local_size, p.beta)
    squares = _average_pool(x[0] ** 2, (p.local_size,) * 2, (1, 1), (radius, radius))
    return x[0] * (1 + p.alpha * squares) ** -p.beta


def _relu(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    slope = layer.message.relu_param.negative_slope
    return tf.nn.leaky_relu(x[0], slope) if slope else tf.nn.relu(x[0])


def _prelu(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    size = 1 if layer.message.prelu_param.channel_shared else x[0].shape[-1]
    alpha = _variable(f"{name}/alpha", [size], 0.25)
    return tf.maximum(x[0], 0) + alpha * tf.minimum(x[0], 0)


def _batch_norm(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    """Normalizes with the stored statistics, as in Caffe's test phase, even while training."""
    size = [x[0].shape[-1]]
    mean = _variable(f"{name}/mean/EMA", size, 0, trainable=False)
    variance = _variable(f"{name}/variance/EMA", size, 1, trainable=False)
    return (x[0] - mean) * tf.math.rsqrt(variance + layer.message.batch_norm_param.eps)


def _scale(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.scale_param
    if len(x) != 1 or p.axis != 1 or p.num_axes != 1:
        raise ValueError("expected a Scale with one bottom, over the channels")
    size = [x[0].shape[-1]]
    y = x[0] * _variable(f"{name}/gamma", size, 1)
    return y + _variable(f"{name}/beta", size, 0) if p.bias_term else y


def _eltwise(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.eltwise_param
    if p.operation == SUM:
        coefficients = list(p.coeff) or [1.0] * len(x)
        return tf.add_n([c * part for c, part in zip(coefficients, x, strict=True)])
    reduce = tf.math.reduce_prod if p.operation == PROD else tf.math.reduce_max
    return reduce(tf.stack(x), axis=0)


def _concat(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    return tf.concat(x, _our_axis(_axis(layer.message.concat_param, "concat_dim"), x[0]))


def _slice(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.slice_param
    axis = _our_axis(_axis(p, "slice_dim"), x[0])
    if not p.slice_point:
        return tf.split(x[0], len(layer.tops), axis=axis)
    points = [0, *p.slice_point, x[0].shape[axis]]
    return tf.split(x[0], np.diff(points).tolist(), axis=axis)


def _crop(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    """Cuts the first bottom to the size of the second, along Caffe's axis and all after it."""
    p = layer.message.crop_param
    rank = x[0].shape.rank
    axes = range(p.axis % rank, rank)
    offsets = list(p.offset) or [0]
    offsets = offsets * len(axes) if len(offsets) == 1 else offsets
    begin, size = [0] * rank, [-1] * rank
    for axis, offset in zip(axes, offsets, strict=True):
        place = _our_axis(axis, x[0])
        begin[place], size[place] = offset, x[1].shape[place] or -1  # -1: a batch keeps its size
    return tf.slice(x[0], begin, size)


def _dropout(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    context = get_current_tower_context()
    if context is None or not context.is_training:
        return x[0]
    return tf.nn.dropout(x[0], layer.message.dropout_param.dropout_ratio)


def _softmax(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    return tf.nn.softmax(x[0], axis=_our_axis(layer.message.softmax_param.axis, x[0]))


def _flatten(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.flatten_param
    dims = _caffe_shape(x[0])
    first, last = p.axis % len(dims), p.end_axis % len(dims)
    if first == 0:
        raise ValueError("expected a Flatten that keeps the batch axis")
    merged = int(np.prod(dims[first : last + 1]))
    return _reshaped(x[0], [-1, *dims[1:first], merged, *dims[last + 1 :]])


def _reshape(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.reshape_param
    dims = _caffe_shape(x[0])
    start = p.axis if p.axis >= 0 else p.axis + len(dims) + 1
    end = len(dims) if p.num_axes == -1 else start + p.num_axes
    wanted = [dims[start + i] if size == 0 else size for i, size in enumerate(p.shape.dim)]
    batch, *rest = *dims[:start], *wanted, *dims[end:]
    if batch is not None and start == 0:
        raise ValueError("expected a Reshape that keeps the batch axis: a first dim of 0")
    if -1 in rest:
        known = int(np.prod([size for size in rest if size != -1]))
        rest[rest.index(-1)] = int(np.prod(dims[1:])) // known
    return _reshaped(x[0], [-1, *rest])


def _reshaped(x: Any, shape: list[Any]) -> Any:
    """Reshaped as Caffe's memory is ordered, channels before height and width."""
    x = tf.transpose(x, TO_CAFFE) if x.shape.rank == 4 else x
    x = tf.reshape(x, shape)
    return tf.transpose(x, FROM_CAFFE) if len(shape) == 4 else x


def _power(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    p = layer.message.power_param
    y = p.shift + p.scale * x[0]
    return y if p.power == 1 else y**p.power


def _elu(layer: CaffeLayer, x: list[Any], name: str) -> Any:
    return tf.where(x[0] > 0, x[0], layer.message.elu_param.alpha * tf.math.expm1(x[0]))


# Each takes the layer, the tensors of its bottoms and the name of its variables, and returns the
# tensor of its top, or a list of them.
LAYERS: dict[str, Callable[[CaffeLayer, list[Any], str], Any]] = {
    "AbsVal": lambda layer, x, name: tf.abs(x[0]),
    "BatchNorm": _batch_norm,
    "Concat": _concat,
    "Convolution": _convolution,
    "Crop": _crop,
    "Deconvolution": _deconvolution,
    "Dropout": _dropout,
    "ELU": _elu,
    "Eltwise": _eltwise,
    "Flatten": _flatten,
    "InnerProduct": _inner_product,
    "LRN": _lrn,
    "PReLU": _prelu,
    "Pooling": _pooling,
    "Power": _power,
    "ReLU": _relu,
    "Reshape": _reshape,
    "Scale": _scale,
    "Sigmoid": lambda layer, x, name: tf.sigmoid(x[0]),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": lambda layer, x, name: x * len(layer.tops),
    "TanH": lambda layer, x, name: tf.tanh(x[0]),
}

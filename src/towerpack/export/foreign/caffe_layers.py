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

# For each axis of Caffe's images its place in channels-last images, and the other way round.
TO_CAFFE, FROM_CAFFE = [0, 3, 1, 2], [0, 2, 3, 1]
# In place of a number of channels: the blob is not an image, or its shape is unknown.
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
    """One layer of a network.

    `message` holds its parameters, `blobs` its weights in Caffe's order, and `scope` is the prefix
    of its variables.
    """

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    message: Any
    blobs: list[np.ndarray] = field(default_factory=list)
    scope: str = ""

    def variable(self, name: str, shape: list[int], start: float | None, **options: Any) -> Any:
        initializer = None if start is None else v1.constant_initializer(start)
        return v1.get_variable(f"{self.scope}/{name}", shape, initializer=initializer, **options)

    def build(self, bottoms: list[Any]) -> list[Any]:
        """The tensors of the layer's tops."""
        parameters, function = LAYERS[self.type]
        made = function(self, getattr(self.message, parameters, None), *bottoms)
        return list(made) if isinstance(made, list | tuple) else [made]


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
            f"the order of the weights of the layer {layer.name!r} depends on the shape of its "
            f"input {layer.bottoms[0]!r}, which is unknown; declare the network's inputs, or pass "
            "input_shapes={'data': [1, 3, 224, 224]}"
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
    """The axis of this tensor that Caffe counts as `axis`."""
    axis = axis + x.shape.rank if axis < 0 else axis
    return TO_CAFFE[axis] if x.shape.rank == 4 else axis


def _caffe_shape(x: Any) -> list[Any]:
    dims: list[Any] = x.shape.as_list()
    return [dims[place] for place in TO_CAFFE] if len(dims) == 4 else dims


def _pair(both: Any, height: int = 0, width: int = 0, default: int = 1) -> Pair:
    """Height and width of a setting given as one number, one or two numbers, or separately."""
    values = [both] if isinstance(both, int) else list(both) or [default]
    return height or values[0], width or values[-1]


def _convolution(layer: CaffeLayer, p: Any, x: Any) -> Any:
    pad = _pair(p.pad, p.pad_h, p.pad_w, default=0)
    return Conv2D(
        layer.scope,
        tf.pad(x, [[0, 0], [pad[0]] * 2, [pad[1]] * 2, [0, 0]]) if any(pad) else x,
        p.num_output,
        _pair(p.kernel_size, p.kernel_h, p.kernel_w),
        strides=_pair(p.stride, p.stride_h, p.stride_w),
        padding="valid",
        dilation_rate=_pair(p.dilation),
        use_bias=p.bias_term,
        split=p.group,
    )


def _deconvolution(layer: CaffeLayer, p: Any, x: Any) -> Any:
    if _pair(p.dilation) != (1, 1):
        raise ValueError("expected a Deconvolution without dilation")
    kernel = _pair(p.kernel_size, p.kernel_h, p.kernel_w)
    strides = _pair(p.stride, p.stride_h, p.stride_w)
    top, left = _pair(p.pad, p.pad_h, p.pad_w, default=0)
    _, height, width, channels = x.shape
    full = [strides[0] * (height - 1) + kernel[0], strides[1] * (width - 1) + kernel[1]]
    out = p.num_output // p.group
    weights = layer.variable("W", [*kernel, out, channels], None)
    groups = zip(tf.split(x, p.group, axis=3), tf.split(weights, p.group, axis=3), strict=True)
    parts = [
        tf.nn.conv2d_transpose(part, w, [tf.shape(part)[0], *full, out], strides, padding="VALID")
        for part, w in groups
    ]
    y = tf.concat(parts, axis=3)[:, top : full[0] - top, left : full[1] - left]
    return y + layer.variable("b", [p.num_output], 0) if p.bias_term else y


def _inner_product(layer: CaffeLayer, p: Any, x: Any) -> Any:
    if p.axis != 1:
        raise ValueError(f"expected an InnerProduct over axis 1, received {p.axis}")
    return FullyConnected(layer.scope, x, p.num_output, use_bias=p.bias_term)


def _pooling(layer: CaffeLayer, p: Any, x: Any) -> Any:
    if p.pool not in (POOL_MAX, POOL_AVERAGE):
        raise ValueError("expected Pooling by MAX or AVE")
    if p.global_pooling:
        reduce = tf.reduce_max if p.pool == POOL_MAX else tf.reduce_mean
        return reduce(x, axis=[1, 2], keepdims=True)
    kernel = _pair(p.kernel_size, p.kernel_h, p.kernel_w)
    strides = _pair(p.stride, p.stride_h, p.stride_w)
    pad = _pair(p.pad, p.pad_h, p.pad_w)
    pool = _max_pool if p.pool == POOL_MAX else _average_pool
    return pool(x, kernel, strides, pad, round_down=p.round_mode == ROUND_DOWN)


def _max_pool(x: Any, kernel: Pair, strides: Pair, pad: Pair, round_down: bool = False) -> Any:
    paddings = _paddings(x, kernel, strides, pad, round_down)
    # Caffe starts from this value, which remains where a window lies outside the image.
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


def _lrn(layer: CaffeLayer, p: Any, x: Any) -> Any:
    if p.local_size % 2 == 0:
        raise ValueError(f"expected an odd local_size, as Caffe does, received {p.local_size}")
    radius = (p.local_size - 1) // 2
    if p.norm_region == ACROSS_CHANNELS:  # Caffe divides alpha by the size; TensorFlow does not
        return tf.nn.local_response_normalization(x, radius, p.k, p.alpha / p.local_size, p.beta)
    squares = _average_pool(x**2, (p.local_size,) * 2, (1, 1), (radius, radius))
    return x * (1 + p.alpha * squares) ** -p.beta


def _relu(layer: CaffeLayer, p: Any, x: Any) -> Any:
    return tf.nn.leaky_relu(x, p.negative_slope) if p.negative_slope else tf.nn.relu(x)


def _prelu(layer: CaffeLayer, p: Any, x: Any) -> Any:
    size = 1 if p.channel_shared else x.shape[-1]
    alpha = layer.variable("alpha", [size], 0.25)
    return tf.maximum(x, 0) + alpha * tf.minimum(x, 0)


def _batch_norm(layer: CaffeLayer, p: Any, x: Any) -> Any:
    """Normalizes with the stored statistics, as in Caffe's test phase, even while training."""
    size = [x.shape[-1]]
    mean = layer.variable("mean/EMA", size, 0, trainable=False)
    variance = layer.variable("variance/EMA", size, 1, trainable=False)
    return (x - mean) * tf.math.rsqrt(variance + p.eps)


def _scale(layer: CaffeLayer, p: Any, x: Any, *_: Any) -> Any:
    if len(layer.bottoms) != 1 or p.axis != 1 or p.num_axes != 1:
        raise ValueError("expected a Scale with one bottom, over the channels")
    size = [x.shape[-1]]
    y = x * layer.variable("gamma", size, 1)
    return y + layer.variable("beta", size, 0) if p.bias_term else y


def _eltwise(layer: CaffeLayer, p: Any, *x: Any) -> Any:
    if p.operation == SUM:
        coefficients = list(p.coeff) or [1.0] * len(x)
        return tf.add_n([c * part for c, part in zip(coefficients, x, strict=True)])
    reduce = tf.math.reduce_prod if p.operation == PROD else tf.math.reduce_max
    return reduce(tf.stack(x), axis=0)


def _slice(layer: CaffeLayer, p: Any, x: Any) -> Any:
    axis = _our_axis(_axis(p, "slice_dim"), x)
    if not p.slice_point:
        return tf.split(x, len(layer.tops), axis=axis)
    points = [0, *p.slice_point, x.shape[axis]]
    return tf.split(x, np.diff(points).tolist(), axis=axis)


def _crop(layer: CaffeLayer, p: Any, x: Any, like: Any) -> Any:
    """Cuts the first bottom to the size of the second, along Caffe's axis and all after it."""
    rank = x.shape.rank
    axes = range(p.axis % rank, rank)
    offsets = list(p.offset) or [0]
    offsets = offsets * len(axes) if len(offsets) == 1 else offsets
    begin, size = [0] * rank, [-1] * rank
    for axis, offset in zip(axes, offsets, strict=True):
        place = _our_axis(axis, x)
        begin[place], size[place] = offset, like.shape[place] or -1  # -1: a batch keeps its size
    return tf.slice(x, begin, size)


def _dropout(layer: CaffeLayer, p: Any, x: Any) -> Any:
    context = get_current_tower_context()
    if context is None or not context.is_training:
        return x
    return tf.nn.dropout(x, p.dropout_ratio)


def _flatten(layer: CaffeLayer, p: Any, x: Any) -> Any:
    dims = _caffe_shape(x)
    first, last = p.axis % len(dims), p.end_axis % len(dims)
    if first == 0:
        raise ValueError("expected a Flatten that keeps the batch axis")
    merged = int(np.prod(dims[first : last + 1]))
    return _reshaped(x, [-1, *dims[1:first], merged, *dims[last + 1 :]])


def _reshape(layer: CaffeLayer, p: Any, x: Any) -> Any:
    dims = _caffe_shape(x)
    start = p.axis if p.axis >= 0 else p.axis + len(dims) + 1
    end = len(dims) if p.num_axes == -1 else start + p.num_axes
    wanted = [dims[start + i] if size == 0 else size for i, size in enumerate(p.shape.dim)]
    batch, *rest = *dims[:start], *wanted, *dims[end:]
    if batch is not None and start == 0:
        raise ValueError("expected a Reshape that keeps the batch axis: a first dim of 0")
    if -1 in rest:
        known = int(np.prod([size for size in rest if size != -1]))
        rest[rest.index(-1)] = int(np.prod(dims[1:])) // known
    return _reshaped(x, [-1, *rest])


def _reshaped(x: Any, shape: list[Any]) -> Any:
    """Reshaped as Caffe's memory is ordered, channels before height and width."""
    x = tf.transpose(x, TO_CAFFE) if x.shape.rank == 4 else x
    x = tf.reshape(x, shape)
    return tf.transpose(x, FROM_CAFFE) if len(shape) == 4 else x


def _power(layer: CaffeLayer, p: Any, x: Any) -> Any:
    y = p.shift + p.scale * x
    return y if p.power == 1 else y**p.power


# For each type the field with its parameters, and the function that builds it. The function is
# called with the layer, the parameters and the tensors of the bottoms. It returns the tensor of the
# top, or a list with one for each top.
LAYERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "AbsVal": ("", lambda layer, p, x: tf.abs(x)),
    "BatchNorm": ("batch_norm_param", _batch_norm),
    "Concat": (
        "concat_param",
        lambda layer, p, *x: tf.concat(x, _our_axis(_axis(p, "concat_dim"), x[0])),
    ),
    "Convolution": ("convolution_param", _convolution),
    "Crop": ("crop_param", _crop),
    "Deconvolution": ("convolution_param", _deconvolution),
    "Dropout": ("dropout_param", _dropout),
    "ELU": (
        "elu_param",
        lambda layer, p, x: tf.where(x > 0, x, p.alpha * tf.math.expm1(x)),
    ),
    "Eltwise": ("eltwise_param", _eltwise),
    "Flatten": ("flatten_param", _flatten),
    "InnerProduct": ("inner_product_param", _inner_product),
    "LRN": ("lrn_param", _lrn),
    "PReLU": ("prelu_param", _prelu),
    "Pooling": ("pooling_param", _pooling),
    "Power": ("power_param", _power),
    "ReLU": ("relu_param", _relu),
    "Reshape": ("reshape_param", _reshape),
    "Scale": ("scale_param", _scale),
    "Sigmoid": ("", lambda layer, p, x: tf.sigmoid(x)),
    "Slice": ("slice_param", _slice),
    "Softmax": (
        "softmax_param",
        lambda layer, p, x: tf.nn.softmax(x, axis=_our_axis(p.axis, x)),
    ),
    "Split": ("", lambda layer, p, x: [x] * len(layer.tops)),
    "TanH": ("", lambda layer, p, x: tf.tanh(x)),
}

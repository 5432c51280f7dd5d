"""Convolutions: over one to three dimensions, transposed, depthwise and separable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.registry import layer_named, layer_register
from towerpack.models.shapes import (
    channel_axis,
    channels_of,
    checked_padding,
    expect_rank,
    has_gpu,
    in_fast_format,
    size_of,
    sizes,
    spatial_axes,
    tf_data_format,
)
from towerpack.models.variables import Activation, Regularizer, VariableHolder, finished, kernel

Sizes = int | tuple[int, ...]

_DOC = """Convolves a {rank}-D input; variables `W` [{window}, in / split, out] and `b`.

    `split` is the number of groups of channels, which are convolved separately. The default
    initializer is He's, for ReLU.

        x = {name}("conv0", x, 32, 3, strides=2, activation=tf.nn.relu)
    """


def _convolution(name: str, window: str) -> Callable[..., Any]:
    """The convolution layer for a window of these dimensions."""
    dimensions = len(window.split(", "))
    rank = dimensions + 2

    @layer_named(name, _DOC.format(name=name, rank=rank, window=window), log_shape=True)
    def layer(
        x: Any,
        filters: int,
        kernel_size: Sizes,
        *,
        strides: Sizes = 1,
        padding: str = "same",
        data_format: str = "channels_last",
        dilation_rate: Sizes = 1,
        activation: Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        split: int = 1,
    ) -> Any:
        expect_rank(x, rank)
        channels = channels_of(x, data_format)
        if channels % split or filters % split:
            raise ValueError(
                f"split={split} must divide the input's channels ({channels}) and filters "
                f"({filters})"
            )
        shape = [*sizes(kernel_size, dimensions), channels // split, filters]
        weights = kernel(shape, x.dtype, kernel_initializer, kernel_regularizer)

        def convolve(inputs: Any, layout: str) -> Any:
            options = {
                "strides": sizes(strides, dimensions),
                "padding": checked_padding(padding),
                "data_format": tf_data_format(layout, rank),
                "dilations": sizes(dilation_rate, dimensions),
            }
            if split == 1 or has_gpu():
                return tf.nn.convolution(inputs, weights, **options)
            # One convolution per group: CPUs have no grouped kernels for some types.
            axis = channel_axis(rank, layout)
            groups = zip(tf.split(inputs, split, axis), tf.split(weights, split, -1), strict=True)
            return tf.concat([tf.nn.convolution(a, w, **options) for a, w in groups], axis)

        output, variables = in_fast_format(convolve, x, data_format), VariableHolder(W=weights)
        return finished(
            output, variables, activation, use_bias, bias_initializer, bias_regularizer, data_format
        )

    return layer


Conv1D = _convolution("Conv1D", "size")
Conv2D = _convolution("Conv2D", "h, w")
Conv3D = _convolution("Conv3D", "d, h, w")


@layer_register(log_shape=True)
def Conv2DTranspose(
    x: Any,
    filters: int,
    kernel_size: Sizes,
    strides: Sizes = 1,
    *,
    padding: str = "same",
    data_format: str = "channels_last",
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
) -> Any:
    """The gradient of a convolution as a layer; variables `W` [h, w, out, in] and `b`.

    With 'same' padding the output is `strides` times as large as the input. With 'valid' it is
    larger by `kernel_size - strides`, if this is positive. Known sizes stay known.

        x = Conv2DTranspose("up0", x, 32, 4, 2)
    """
    expect_rank(x, 4)
    window, steps = sizes(kernel_size, 2), sizes(strides, 2)
    mode = checked_padding(padding)
    shape = [*window, filters, channels_of(x, data_format)]
    weights = kernel(shape, x.dtype, kernel_initializer, kernel_regularizer)

    def transpose(inputs: Any, layout: str) -> Any:
        shape: list[Any] = [size_of(inputs, 0), filters, filters, filters]
        for axis, size, step in zip(spatial_axes(4, layout), window, steps, strict=True):
            grown = size_of(inputs, axis) * step
            shape[axis] = grown if mode == "SAME" else grown + max(size - step, 0)
        output = tf.nn.conv2d_transpose(
            inputs, weights, tf.stack(shape), steps, mode, tf_data_format(layout, 4)
        )
        output.set_shape([None if tf.is_tensor(size) else size for size in shape])
        return output

    output, variables = in_fast_format(transpose, x, data_format), VariableHolder(W=weights)
    return finished(
        output, variables, activation, use_bias, bias_initializer, bias_regularizer, data_format
    )


@layer_register(log_shape=True)
def DepthwiseConv2D(
    x: Any,
    kernel_size: Sizes,
    *,
    depth_multiplier: int = 1,
    strides: Sizes = 1,
    padding: str = "same",
    data_format: str = "channels_last",
    dilation_rate: Sizes = 1,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
) -> Any:
    """Convolves each channel separately; variables `W` [h, w, in, multiplier] and `b`.

    x = DepthwiseConv2D("dw0", x, 3)
    """
    expect_rank(x, 4)
    shape = [*sizes(kernel_size, 2), channels_of(x, data_format), depth_multiplier]
    weights = kernel(shape, x.dtype, kernel_initializer, kernel_regularizer)
    output = _depthwise(x, weights, strides, padding, data_format, dilation_rate)
    variables = VariableHolder(W=weights)
    return finished(
        output, variables, activation, use_bias, bias_initializer, bias_regularizer, data_format
    )


@layer_register(log_shape=True)
def SeparableConv2D(
    x: Any,
    filters: int,
    kernel_size: Sizes,
    *,
    depth_multiplier: int = 1,
    strides: Sizes = 1,
    padding: str = "same",
    data_format: str = "channels_last",
    dilation_rate: Sizes = 1,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
) -> Any:
    """A depthwise convolution, then a convolution of size 1 over all channels.

    Variables `depthwise/W` [h, w, in, multiplier], `W` [1, 1, in * multiplier, out] and `b`. The
    initializer and the regularizer apply to both kernels.

        x = SeparableConv2D("sep0", x, 64, 3, activation=tf.nn.relu)
    """
    expect_rank(x, 4)
    channels = channels_of(x, data_format)

    def make(name: str, *shape: int) -> Any:
        return kernel(shape, x.dtype, kernel_initializer, kernel_regularizer, name)

    depthwise = make("depthwise/W", *sizes(kernel_size, 2), channels, depth_multiplier)
    middle = _depthwise(x, depthwise, strides, padding, data_format, dilation_rate)
    pointwise = make("W", 1, 1, channels * depth_multiplier, filters)

    def mix(inputs: Any, layout: str) -> Any:
        return tf.nn.conv2d(inputs, pointwise, 1, "VALID", data_format=tf_data_format(layout, 4))

    output = in_fast_format(mix, middle, data_format)
    variables = VariableHolder(depthwise_W=depthwise, W=pointwise)
    return finished(
        output, variables, activation, use_bias, bias_initializer, bias_regularizer, data_format
    )


def _depthwise(
    x: Any, weights: Any, strides: Any, padding: str, data_format: str, dilation_rate: Any
) -> Any:
    steps = sizes(strides, 2)
    if steps[0] != steps[1]:
        raise ValueError(f"expected the same stride in both directions, received {strides!r}")

    def convolve(inputs: Any, layout: str) -> Any:
        strides4 = [1, *steps, 1] if layout == "channels_last" else [1, 1, *steps]
        mode, form = checked_padding(padding), tf_data_format(layout, 4)
        return tf.nn.depthwise_conv2d(
            inputs, weights, strides4, mode, form, sizes(dilation_rate, 2)
        )

    return in_fast_format(convolve, x, data_format)

"""Convolution of each channel by itself, and the separable convolution made of it."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.convolution import OLD_CONV_NAMES, checked_padding
from towerpack.models.data_format import channels_of, in_fast_format, tf_data_format
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import expect_rank, sizes
from towerpack.models.weights import Activation, Regularizer, add_bias, bias, finished, kernel

# It has as many outputs as inputs make.
OLD_DEPTHWISE_NAMES = {old: new for old, new in OLD_CONV_NAMES.items() if new != "filters"}


@layer_register(log_shape=True, renamed=OLD_DEPTHWISE_NAMES)
def DepthwiseConv2D(
    x: Any,
    kernel_size: int | tuple[int, int],
    *,
    depth_multiplier: int = 1,
    strides: int | tuple[int, int] = 1,
    padding: str = "same",
    data_format: str = "channels_last",
    dilation_rate: int | tuple[int, int] = 1,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
) -> Any:
    """Convolves each channel by itself; variables `W` [h, w, in, multiplier] and `b`.

    x = DepthwiseConv2D("dw0", x, 3)
    """
    output, weights = _depthwise(
        x,
        kernel_size,
        depth_multiplier,
        strides,
        padding,
        data_format,
        dilation_rate,
        kernel_initializer,
        kernel_regularizer,
        "W",
    )
    variables = VariableHolder(W=weights)
    if use_bias:
        channels = channels_of(output, data_format)
        variables.b = bias([channels], x.dtype, bias_initializer, bias_regularizer)
        output = add_bias(output, variables.b, data_format)
    return finished(output, activation, variables)


@layer_register(log_shape=True, renamed=OLD_CONV_NAMES)
def SeparableConv2D(
    x: Any,
    filters: int,
    kernel_size: int | tuple[int, int],
    *,
    depth_multiplier: int = 1,
    strides: int | tuple[int, int] = 1,
    padding: str = "same",
    data_format: str = "channels_last",
    dilation_rate: int | tuple[int, int] = 1,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
) -> Any:
    """A depthwise convolution, then one of size 1 over all channels.

    Variables `depthwise/W` [h, w, in, multiplier], `W` [1, 1, in * multiplier, out] and `b`; the
    initializer and the regularizer act on both kernels.

        x = SeparableConv2D("sep0", x, 64, 3, activation=tf.nn.relu)
    """
    middle, depthwise = _depthwise(
        x,
        kernel_size,
        depth_multiplier,
        strides,
        padding,
        data_format,
        dilation_rate,
        kernel_initializer,
        kernel_regularizer,
        "depthwise/W",
    )
    pointwise = kernel(
        [1, 1, channels_of(middle, data_format), filters],
        x.dtype,
        kernel_initializer,
        kernel_regularizer,
    )

    def mix(inputs: Any, layout: str) -> Any:
        return tf.nn.conv2d(inputs, pointwise, 1, "VALID", data_format=tf_data_format(layout, 4))

    output = in_fast_format(mix, middle, data_format)
    variables = VariableHolder(depthwise_W=depthwise, W=pointwise)
    if use_bias:
        variables.b = bias([filters], x.dtype, bias_initializer, bias_regularizer)
        output = add_bias(output, variables.b, data_format)
    return finished(output, activation, variables)


def _depthwise(
    x: Any,
    kernel_size: Any,
    multiplier: int,
    strides: Any,
    padding: str,
    data_format: str,
    dilation_rate: Any,
    initializer: Any,
    regularizer: Regularizer | None,
    name: str,
) -> tuple[Any, Any]:
    expect_rank(x, 4)
    steps = sizes(strides, 2)
    if steps[0] != steps[1]:
        raise ValueError(f"expected the same stride in both directions, received {strides!r}")
    shape = [*sizes(kernel_size, 2), channels_of(x, data_format), multiplier]
    weights = kernel(shape, x.dtype, initializer, regularizer, name)

    def convolve(inputs: Any, layout: str) -> Any:
        strides4 = [1, *steps, 1] if layout == "channels_last" else [1, 1, *steps]
        return tf.nn.depthwise_conv2d(
            inputs,
            weights,
            strides4,
            checked_padding(padding),
            tf_data_format(layout, 4),
            sizes(dilation_rate, 2),
        )

    return in_fast_format(convolve, x, data_format), weights

"""Two-dimensional convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import channels_of, get_data_format, shape2d, shape4d, tf_data_format

OLD_CONV_NAMES = {
    "out_channel": "filters",
    "kernel_shape": "kernel_size",
    "stride": "strides",
    "nl": "activation",
    "W_init": "kernel_initializer",
    "b_init": "bias_initializer",
}


@layer_register(log_shape=True, renamed=OLD_CONV_NAMES)
def Conv2D(
    x: Any,
    filters: int,
    kernel_size: int | tuple[int, int],
    *,
    strides: int | tuple[int, int] = 1,
    padding: str = "same",
    data_format: str = "channels_last",
    dilation_rate: int | tuple[int, int] = 1,
    activation: Callable[[Any], Any] | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Callable[[Any], Any] | None = None,
    bias_regularizer: Callable[[Any], Any] | None = None,
    split: int = 1,
) -> Any:
    """Convolves a 4-D input; variables `W` [h, w, in / split, out] and `b`.

    `split` convolves that many groups of channels apart. The default initializer is He's, for ReLU.
    """
    if x.shape.rank != 4:
        raise ValueError(f"expected a 4-D input, received shape {x.shape}")
    channels = channels_of(x, data_format)
    if channels % split or filters % split:
        raise ValueError(
            f"split={split} must divide the input's channels ({channels}) and filters ({filters})"
        )
    if kernel_initializer is None:
        kernel_initializer = v1.variance_scaling_initializer(
            2.0, mode="fan_in", distribution="untruncated_normal"
        )
    weights = v1.get_variable(
        "W",
        [*shape2d(kernel_size), channels // split, filters],
        dtype=x.dtype,
        initializer=kernel_initializer,
        regularizer=kernel_regularizer,
    )
    layout = tf_data_format(data_format)
    options = {
        "strides": shape4d(strides, data_format),
        "padding": padding.upper(),
        "data_format": layout,
        "dilations": shape4d(dilation_rate, data_format),
    }
    if split == 1:
        output = tf.nn.conv2d(x, weights, **options)
    else:
        # One convolution per group: the CPU has no kernel for grouped ones.
        axis = -1 if get_data_format(data_format) == "channels_last" else 1
        groups = zip(tf.split(x, split, axis), tf.split(weights, split, 3), strict=True)
        output = tf.concat([tf.nn.conv2d(a, w, **options) for a, w in groups], axis)
    variables = VariableHolder(W=weights)
    if use_bias:
        bias = variables.b = v1.get_variable(
            "b",
            [filters],
            dtype=x.dtype,
            initializer=v1.zeros_initializer() if bias_initializer is None else bias_initializer,
            regularizer=bias_regularizer,
        )
        output = tf.nn.bias_add(output, bias, data_format=layout)
    if activation is not None:
        output = activation(output)
    output.variables = variables
    return output

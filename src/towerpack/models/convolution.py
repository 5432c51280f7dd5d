"""Convolution over any number of dimensions: what Conv1D, Conv2D and Conv3D have in common."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.data_format import (
    channel_axis,
    channels_of,
    has_gpu,
    in_fast_format,
    tf_data_format,
)
from towerpack.models.registry import VariableHolder
from towerpack.models.shapes import expect_rank, sizes
from towerpack.models.weights import (
    OLD_WEIGHT_NAMES,
    Activation,
    Regularizer,
    add_bias,
    bias,
    finished,
    kernel,
)

OLD_CONV_NAMES = {
    **OLD_WEIGHT_NAMES,
    "out_channel": "filters",
    "kernel_shape": "kernel_size",
    "stride": "strides",
}


def convolution(
    x: Any,
    dimensions: int,
    filters: int,
    kernel_size: Any,
    *,
    strides: Any,
    padding: str,
    data_format: str,
    dilation_rate: Any,
    activation: Activation | None,
    use_bias: bool,
    kernel_initializer: Any,
    bias_initializer: Any,
    kernel_regularizer: Regularizer | None,
    bias_regularizer: Regularizer | None,
    split: int,
) -> Any:
    """Convolves [batch, *dimensions, channels] with a new `W`, and adds a new `b`."""
    rank = expect_rank(x, dimensions + 2)
    channels = channels_of(x, data_format)
    if channels % split or filters % split:
        raise ValueError(
            f"split={split} must divide the input's channels ({channels}) and filters ({filters})"
        )
    weights = kernel(
        [*sizes(kernel_size, dimensions), channels // split, filters],
        x.dtype,
        kernel_initializer,
        kernel_regularizer,
    )

    def convolve(inputs: Any, layout: str) -> Any:
        options = {
            "strides": sizes(strides, dimensions),
            "padding": checked_padding(padding),
            "data_format": tf_data_format(layout, rank),
            "dilations": sizes(dilation_rate, dimensions),
        }
        if split == 1 or has_gpu():
            return tf.nn.convolution(inputs, weights, **options)
        # One convolution per group: the CPU has no kernel for grouped ones in all types.
        axis = channel_axis(rank, layout)
        groups = zip(tf.split(inputs, split, axis), tf.split(weights, split, -1), strict=True)
        return tf.concat([tf.nn.convolution(a, w, **options) for a, w in groups], axis)

    output = in_fast_format(convolve, x, data_format)
    variables = VariableHolder(W=weights)
    if use_bias:
        variables.b = bias([filters], x.dtype, bias_initializer, bias_regularizer)
        output = add_bias(output, variables.b, data_format)
    return finished(output, activation, variables)


def checked_padding(padding: str) -> str:
    """'SAME' or 'VALID' from any spelling."""
    name = str(padding).upper()
    if name not in ("SAME", "VALID"):
        raise ValueError(f"expected 'same' or 'valid' as padding, received {padding!r}")
    return name

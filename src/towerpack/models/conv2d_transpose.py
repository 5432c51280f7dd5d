"""The transposed convolution."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.convolution import OLD_CONV_NAMES, checked_padding
from towerpack.models.data_format import channels_of, in_fast_format, spatial_axes, tf_data_format
from towerpack.models.registry import VariableHolder, layer_register, register_alias
from towerpack.models.shapes import expect_rank, size_of, sizes
from towerpack.models.weights import Activation, Regularizer, add_bias, bias, finished, kernel


@layer_register(log_shape=True, renamed=OLD_CONV_NAMES)
def Conv2DTranspose(
    x: Any,
    filters: int,
    kernel_size: int | tuple[int, int],
    strides: int | tuple[int, int] = 1,
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

    The output is `strides` times as large for 'same' padding, and by `kernel_size - strides`
    larger than that (if it is positive) for 'valid'. Sizes that are known stay known. Also named
    `Deconv2D`.

        x = Conv2DTranspose("up0", x, 32, 4, 2)
    """
    expect_rank(x, 4)
    window, steps = sizes(kernel_size, 2), sizes(strides, 2)
    mode = checked_padding(padding)
    weights = kernel(
        [*window, filters, channels_of(x, data_format)],
        x.dtype,
        kernel_initializer,
        kernel_regularizer,
    )

    def transpose(inputs: Any, layout: str) -> Any:
        axes = spatial_axes(4, layout)
        shape: list[Any] = [size_of(inputs, 0), filters, filters, filters]
        for axis, size, step in zip(axes, window, steps, strict=True):
            grown = size_of(inputs, axis) * step
            shape[axis] = grown if mode == "SAME" else grown + max(size - step, 0)
        output = tf.nn.conv2d_transpose(
            inputs, weights, tf.stack(shape), steps, mode, tf_data_format(layout, 4)
        )
        output.set_shape([None if tf.is_tensor(size) else size for size in shape])
        return output

    output = in_fast_format(transpose, x, data_format)
    variables = VariableHolder(W=weights)
    if use_bias:
        variables.b = bias([filters], x.dtype, bias_initializer, bias_regularizer)
        output = add_bias(output, variables.b, data_format)
    return finished(output, activation, variables)


Deconv2D = register_alias("Deconv2D", Conv2DTranspose)

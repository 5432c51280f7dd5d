"""Two-dimensional convolution."""

from __future__ import annotations

from typing import Any

from towerpack.models.convolution import OLD_CONV_NAMES, convolution
from towerpack.models.registry import layer_register
from towerpack.models.weights import Activation, Regularizer


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
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
    split: int = 1,
) -> Any:
    """Convolves a 4-D input; variables `W` [h, w, in / split, out] and `b`.

    `split` convolves that many groups of channels apart. The default initializer is He's, for ReLU.

        x = Conv2D("conv0", x, 32, 3, strides=2, activation=tf.nn.relu)
    """
    return convolution(
        x,
        2,
        filters,
        kernel_size,
        strides=strides,
        padding=padding,
        data_format=data_format,
        dilation_rate=dilation_rate,
        activation=activation,
        use_bias=use_bias,
        kernel_initializer=kernel_initializer,
        bias_initializer=bias_initializer,
        kernel_regularizer=kernel_regularizer,
        bias_regularizer=bias_regularizer,
        split=split,
    )

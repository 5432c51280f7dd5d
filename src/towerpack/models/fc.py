"""The fully connected layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import batch_flatten

OLD_FC_NAMES = {
    "out_dim": "units",
    "nl": "activation",
    "W_init": "kernel_initializer",
    "b_init": "bias_initializer",
}


@layer_register(log_shape=True, renamed=OLD_FC_NAMES)
def FullyConnected(
    x: Any,
    units: int,
    *,
    activation: Callable[[Any], Any] | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Callable[[Any], Any] | None = None,
    bias_regularizer: Callable[[Any], Any] | None = None,
) -> Any:
    """Multiplies the input, flattened to [batch, features], by `W` and adds `b`."""
    x = batch_flatten(x)
    if x.shape[1] is None:
        raise ValueError(
            "the number of features is unknown; declare the input's size in its TensorSpec"
        )
    if kernel_initializer is None:
        kernel_initializer = v1.variance_scaling_initializer(
            2.0, mode="fan_in", distribution="untruncated_normal"
        )
    weights = v1.get_variable(
        "W",
        [x.shape[1], units],
        dtype=x.dtype,
        initializer=kernel_initializer,
        regularizer=kernel_regularizer,
    )
    output = tf.matmul(x, weights)
    variables = VariableHolder(W=weights)
    if use_bias:
        bias = variables.b = v1.get_variable(
            "b",
            [units],
            dtype=x.dtype,
            initializer=v1.zeros_initializer() if bias_initializer is None else bias_initializer,
            regularizer=bias_regularizer,
        )
        output = tf.nn.bias_add(output, bias)
    if activation is not None:
        output = activation(output)
    output.variables = variables
    return output

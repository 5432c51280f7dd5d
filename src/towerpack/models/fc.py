"""The fully connected layer."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import batch_flatten
from towerpack.models.weights import (
    OLD_WEIGHT_NAMES,
    Activation,
    Regularizer,
    add_bias,
    bias,
    finished,
    kernel,
)

OLD_FC_NAMES = {**OLD_WEIGHT_NAMES, "out_dim": "units"}


@layer_register(log_shape=True, renamed=OLD_FC_NAMES)
def FullyConnected(
    x: Any,
    units: int,
    *,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
) -> Any:
    """Multiplies the input, flattened to [batch, features], by `W` [in, out] and adds `b`.

    The default initializer is He's, for ReLU.

        logits = FullyConnected("fc", x, 10)
    """
    x = batch_flatten(x)
    if x.shape[1] is None:
        raise ValueError(
            "the number of features is unknown; declare the input's size in its TensorSpec"
        )
    weights = kernel([x.shape[1], units], x.dtype, kernel_initializer, kernel_regularizer)
    output = tf.matmul(x, weights)
    variables = VariableHolder(W=weights)
    if use_bias:
        variables.b = bias([units], x.dtype, bias_initializer, bias_regularizer)
        output = add_bias(output, variables.b)
    return finished(output, activation, variables)

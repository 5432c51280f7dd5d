"""The weights that layers share: kernel, bias, and the activation after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.data_format import tf_data_format
from towerpack.models.registry import VariableHolder

Regularizer = Callable[[Any], Any]
Activation = Callable[[Any], Any]

# Argument names of old scripts, for all layers with a kernel and a bias.
OLD_WEIGHT_NAMES = {
    "nl": "activation",
    "W_init": "kernel_initializer",
    "b_init": "bias_initializer",
}


def he_initializer() -> Any:
    """He's initializer, for layers with a ReLU after them."""
    return v1.variance_scaling_initializer(2.0, mode="fan_in", distribution="untruncated_normal")


def kernel(
    shape: Sequence[int],
    dtype: Any,
    initializer: Any = None,
    regularizer: Regularizer | None = None,
    name: str = "W",
) -> Any:
    """The layer's kernel, under the open variable scope."""
    return v1.get_variable(
        name,
        list(shape),
        dtype=dtype,
        initializer=he_initializer() if initializer is None else initializer,
        regularizer=regularizer,
    )


def bias(
    shape: Sequence[int],
    dtype: Any,
    initializer: Any = None,
    regularizer: Regularizer | None = None,
    name: str = "b",
) -> Any:
    """The layer's bias, zero by default, under the open variable scope."""
    return v1.get_variable(
        name,
        list(shape),
        dtype=dtype,
        initializer=v1.zeros_initializer() if initializer is None else initializer,
        regularizer=regularizer,
    )


def add_bias(output: Any, vector: Any, data_format: str = "channels_last") -> Any:
    rank = output.shape.rank
    if rank == 2:
        return tf.nn.bias_add(output, vector)
    # bias_add knows the formats of images, and takes them for other ranks too.
    layout = "NHWC" if tf_data_format(data_format, rank).endswith("C") else "NCHW"
    return tf.nn.bias_add(output, vector, data_format=layout)


def finished(output: Any, activation: Activation | None, variables: VariableHolder) -> Any:
    """The output after the activation, with the layer's variables on it."""
    if activation is not None:
        if not callable(activation):
            raise TypeError(
                f"expected a function such as tf.nn.relu as activation, received {activation!r}"
            )
        output = activation(output)
    else:
        # Attributes belong on a tensor of our own: the input may pass through some layers as it is.
        output = tf.identity(output)
    output.variables = variables
    return output

"""The variables of layers: trained weights, and state that layers update themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.shapes import channels_are_last, channels_of
from towerpack.tower import VariableStore, get_current_tower_context

Regularizer = Callable[[Any], Any]
Activation = Callable[[Any], Any]


class VariableHolder:
    """The variables of a layer's output, by their short names: `layer.variables.W`."""

    def __init__(self, **variables: Any):
        self.__dict__.update(variables)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the layer has no variable {name!r}; it has {list(self.__dict__)}")

    def all(self) -> list[Any]:
        return list(self.__dict__.values())


def kernel(
    shape: Sequence[int],
    dtype: Any,
    initializer: Any = None,
    regularizer: Regularizer | None = None,
    name: str = "W",
) -> Any:
    """The layer's kernel, in the open variable scope; He's initializer (for ReLU) by default."""
    if initializer is None:
        initializer = v1.variance_scaling_initializer(2.0, "fan_in", "untruncated_normal")
    return v1.get_variable(name, list(shape), dtype, initializer, regularizer)


def bias(
    shape: Sequence[int],
    dtype: Any,
    initializer: Any = None,
    regularizer: Regularizer | None = None,
    name: str = "b",
) -> Any:
    """The layer's bias, in the open variable scope; zero by default."""
    if initializer is None:
        initializer = v1.zeros_initializer()
    return v1.get_variable(name, list(shape), dtype, initializer, regularizer)


def finished(
    output: Any,
    variables: VariableHolder,
    activation: Activation | None,
    use_bias: bool,
    initializer: Any,
    regularizer: Regularizer | None,
    data_format: str = "channels_last",
) -> Any:
    """Adds a bias `b` and the activation, and sets the layer's variables as an attribute."""
    if use_bias:
        shape = [channels_of(output, data_format)]
        variables.b = bias(shape, output.dtype, initializer, regularizer)
        # bias_add uses the names of image formats for all ranks.
        layout = "NHWC" if channels_are_last(data_format) else "NCHW"
        output = tf.nn.bias_add(output, variables.b, layout)
    if activation is None:
        # A new tensor for the attribute: some layers return their input itself.
        output = tf.identity(output)
    elif callable(activation):
        output = activation(output)
    else:
        raise TypeError(
            f"expected a function such as tf.nn.relu as activation, received {activation!r}"
        )
    output.variables = variables
    return output


def in_training(training: Any = None) -> bool:
    """The layer's own argument if it is given, otherwise whether the tower is for training."""
    if tf.is_tensor(training):
        raise TypeError(
            "expected True, False or None as training, received a tensor; training and inference "
            "are two traces of the tower, so it must be known while the tower is built"
        )
    if training is not None:
        return bool(training)
    context = get_current_tower_context()
    return bool(context and context.is_training)


def state_variable(name: str, shape: Sequence[int], initializer: Any) -> Any:
    """A float32 variable of the layer that is saved with the model and has no gradient.

    Returns the variable itself, even if `remap_variables` replaces variables where they are read.
    """
    variable = v1.get_variable(
        name,
        list(shape),
        tf.float32,
        initializer,
        trainable=False,
        collections=[v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.MODEL_VARIABLES],
    )
    if hasattr(variable, "assign"):
        return variable
    return VariableStore.current()[f"{v1.get_variable_scope().name}/{name}"]


def update_state(output: Any, assignments: Sequence[tuple[Any, Any]], mode: str = "default") -> Any:
    """Returns the output, and assigns each (variable, new value) along with the step.

    The mode 'default' (or 'collection') assigns when the training step runs, 'internal' whenever
    the output is computed, and 'skip' never. If towers share variables, only the first one updates
    them. An inference tower updates nothing.
    """
    context = get_current_tower_context()
    if mode == "skip" or not (context and context.is_training and context.updates_state):
        return output
    updates = [variable.assign(value, read_value=False) for variable, value in assignments]
    if tf.executing_eagerly():
        return output
    if mode == "internal":
        with tf.control_dependencies(updates):
            return tf.identity(output)
    for update in updates:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return output

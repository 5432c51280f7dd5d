"""Layers whose kernel has the spectral norm one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.layer_state import state_variable, update_state
from towerpack.models.phase import in_training
from towerpack.models.registry import layer_register

_SMALLEST_NORM = 1e-12  # of a vector that is divided by it


@layer_register(log_shape=True)
def SpectralNorm(
    x: Any,
    layer: Callable[..., Any],
    arguments: dict[str, Any] | None = None,
    *,
    iterations: int = 1,
    training: bool | None = None,
) -> Any:
    """Calls another layer with its kernel `W` divided by an estimate of its largest singular value.

    The estimate comes from `iterations` steps of the power method in each training step, continued
    from the last one's vector, the variable `u`. Other variables are those of the layer, under this
    layer's name; `arguments` and argscopes of the layer reach it.

        x = SpectralNorm("conv0", x, Conv2D, {"filters": 64, "kernel_size": 3})
    """
    inner = getattr(layer, "in_open_scope", None)
    if inner is None:
        raise TypeError(f"expected a layer such as Conv2D, received {layer!r}")
    normalized: list[Any] = []

    def getter(getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        weights = getter(name, *args, **kwargs)
        if not name.endswith("/W"):
            return weights
        normalized.append(name)
        if len(normalized) > 1:
            raise ValueError(f"expected a layer with one kernel W, received {normalized}")
        return _divided(weights, iterations, training)

    scope = v1.get_variable_scope()
    with v1.variable_scope(scope, custom_getter=getter, auxiliary_name_scope=False):
        output = inner(x, **(arguments or {}))
    if not normalized:
        raise ValueError(f"{inspect.unwrap(layer).__name__} has no kernel W to normalize")
    return output


def _divided(weights: Any, iterations: int, training: bool | None) -> Any:
    matrix = tf.cast(tf.reshape(weights, [-1, weights.shape[-1]]), tf.float32)
    u = state_variable("u", [1, matrix.shape[1]], v1.random_normal_initializer())
    fixed, row = tf.stop_gradient(matrix), _unit(tf.convert_to_tensor(u))
    column = _unit(tf.matmul(row, fixed, transpose_b=True))
    if in_training(training):
        for _ in range(iterations):
            row = _unit(tf.matmul(column, fixed))
            column = _unit(tf.matmul(row, fixed, transpose_b=True))
    largest = tf.squeeze(tf.matmul(tf.matmul(column, matrix), row, transpose_b=True))
    output = tf.cast(tf.reshape(matrix / largest, weights.shape), weights.dtype)
    return update_state(output, [(u, row)], "default") if in_training(training) else output


def _unit(vector: Any) -> Any:
    return tf.math.divide(vector, tf.norm(vector) + _SMALLEST_NORM)

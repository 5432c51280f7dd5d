"""Layers that compute in half precision, while variables and everything else stay in float32."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.keras_layers import in_layer_call
from towerpack.tower.varreplace import creation_scope

HALF = ("bfloat16", "float16")
_precision: contextvars.ContextVar[str | None] = contextvars.ContextVar("precision", default=None)


@contextlib.contextmanager
def half_layers(precision: str) -> Iterator[None]:
    """While open, towerpack's layers compute in `precision`; their inputs and outputs are float32.

    Inputs, targets and costs are not rounded, and a layer's output can be combined with them. A
    variable that a layer requests in half precision is stored in float32 and read in half. So small
    updates are not lost, and a checkpoint does not depend on the precision. Keras layers follow
    their own policy (`keras.mixed_precision`) instead.
    """

    def getter(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wanted = tf.as_dtype(kwargs.get("dtype") or tf.float32)
        if wanted.name not in HALF or in_layer_call():
            return getter(*args, **kwargs)
        kwargs["dtype"] = tf.float32
        return tf.cast(getter(*args, **kwargs), wanted)

    with _set(precision), creation_scope(getter):
        yield


def in_layer_precision(layer: Callable[..., Any], x: Any, arguments: dict[str, Any]) -> Any:
    """Calls `layer(x, **arguments)`, in half precision while `half_layers` is open."""
    precision = _precision.get()
    if precision is None:
        return layer(x, **arguments)
    with _set(None):  # layers inside this one receive half precision already
        x, arguments = tf.nest.map_structure(lambda t: _as_half(t, precision), (x, arguments))
        output = layer(x, **arguments)
    return tf.nest.map_structure(_as_float32, output)


def _as_half(value: Any, precision: str) -> Any:
    # A scalar is a setting of the layer and not its data.
    if isinstance(value, tf.Tensor) and value.dtype == tf.float32 and value.shape.rank != 0:
        return tf.cast(value, precision)
    return value


def _as_float32(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or value.dtype.name not in HALF:
        return value
    output = tf.cast(value, tf.float32)
    if hasattr(value, "variables"):
        output.variables = value.variables
    return output


@contextlib.contextmanager
def _set(precision: str | None) -> Iterator[None]:
    token = _precision.set(precision)
    try:
        yield
    finally:
        _precision.reset(token)

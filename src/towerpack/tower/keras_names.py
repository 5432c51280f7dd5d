"""The two places where towers reach into Keras: the numbers in layer names, and layer calls.

Keras numbers layers without a name in the order in which the process makes them, so that a layer
made in every call of the tower function would have another name, and other variables, each time.
While a tower is built the numbers begin anew. Keras has no public call for that; nothing happens
when the place is gone (a test reports it).

A tower also needs to know which Keras layers are called in it, because `trainable`, constraints and
paths are attributes of Keras objects that a bare `tf.Variable` does not have. For that,
`keras.Layer.__call__` is wrapped once in a process. In a thread that builds no tower the wrapper
does nothing but call the layer.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from towerpack._tensorflow import tf

COUNTERS = "object_name_uids"

Handler = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""`handler(layer, call, args, kwargs)` makes the call, `call(*args, **kwargs)`."""

_local = threading.local()
_installing = threading.Lock()


@contextlib.contextmanager
def fresh_layer_names() -> Iterator[None]:
    """While open, Keras names layers as if none had been made before."""
    state = keras_global_state()
    if state is None:
        yield
        return
    before = state.get_global_attribute(COUNTERS)
    state.set_global_attribute(COUNTERS, defaultdict(int))
    try:
        yield
    finally:
        state.set_global_attribute(COUNTERS, before)


def keras_global_state() -> ModuleType | None:
    """Keras' module of counters; None when Keras is not loaded, or no longer has it."""
    if "keras" not in sys.modules:
        return None
    try:
        module = importlib.import_module("keras.src.backend.common.global_state")
    except ImportError:
        return None
    has_both = hasattr(module, "get_global_attribute") and hasattr(module, "set_global_attribute")
    return module if has_both else None


@contextlib.contextmanager
def layer_calls_through(handler: Handler) -> Iterator[None]:
    """While open, each outermost call of a Keras layer in this thread is made by `handler`.

    Calls with symbolic inputs, which build a functional model, and calls of layers by layers are
    left to Keras.
    """
    _wrap_layer_calls()
    with _handled_by(handler):
        yield


def in_layer_call() -> bool:
    """Whether a handler is calling a Keras layer in this thread."""
    return getattr(_local, "handler", None) is _left_to_keras


def symbolic(arguments: Any) -> Any:
    """The arguments of a layer with a symbolic tensor for each tensor: to build it, not to run."""
    keras = tf.keras

    def spec(x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype.name) if tf.is_tensor(x) else x

    return keras.tree.map_structure(spec, arguments)


def is_symbolic(arguments: Any) -> bool:
    """Whether any of these nested arguments is a symbolic tensor of Keras."""
    keras = tf.keras
    return any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(arguments))


def _left_to_keras(
    layer: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return call(*args, **kwargs)


@contextlib.contextmanager
def _handled_by(handler: Handler | None) -> Iterator[None]:
    before = getattr(_local, "handler", None)
    _local.handler = handler
    try:
        yield
    finally:
        _local.handler = before


def _wrap_layer_calls() -> None:
    layer_class = tf.keras.Layer
    with _installing:
        original = layer_class.__call__
        if hasattr(original, "of_towerpack"):
            return

        @functools.wraps(original)
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            handler = getattr(_local, "handler", None)
            if handler is None or handler is _left_to_keras:
                return original(layer, *args, **kwargs)
            if is_symbolic((args, kwargs)):
                with _handled_by(None):
                    return original(layer, *args, **kwargs)
            with _handled_by(_left_to_keras):
                return handler(layer, functools.partial(original, layer), args, kwargs)

        call.of_towerpack = True  # type: ignore[attr-defined]
        layer_class.__call__ = call

"""Keras layers in towers: their names, their calls, their state, and the variables they own.

Keras numbers layers without a name in the order in which the process makes them. A layer made in
every call of the tower function would get another name, and other variables, each time. While a
tower is built the numbers start again. Keras has no public call for that. If the private one
disappears, nothing is renumbered, and a test reports it.

A tower must also know which Keras layers are called in it, because `trainable`, constraints and
paths are attributes of Keras objects that a plain `tf.Variable` does not have. And towers may share
their variables: then the averages of `BatchNormalization` must be updated once per step, and the
masks of `Dropout` must differ between towers. For all this, three public methods of Keras are
wrapped, once per process: `Layer.__call__`, `Variable.assign` and `SeedGenerator.next`. In a thread
that builds no tower, the wrappers only call the original.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from towerpack._tensorflow import tf

COUNTERS = "object_name_uids"
# The distance between the seeds of two towers. Keras draws seeds below 1e9 and reads them as 32
# bits.
SEED_STRIDE = 1_000_003

Handler = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""`handler(layer, call, args, kwargs)` makes the call, `call(*args, **kwargs)`."""

_local = threading.local()
_installing = threading.Lock()


@contextlib.contextmanager
def fresh_layer_names() -> Iterator[None]:
    """While open, Keras names layers as if it had made none before."""
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
    """Keras' module of counters; None if Keras is not loaded or has no such module."""
    if "keras" not in sys.modules:
        return None
    try:
        module = importlib.import_module("keras.src.backend.common.global_state")
    except ImportError:
        return None
    has_both = hasattr(module, "get_global_attribute") and hasattr(module, "set_global_attribute")
    return module if has_both else None


@contextlib.contextmanager
def layer_calls_through(handler: Handler, inner: Handler) -> Iterator[None]:
    """While open, `handler` makes each outermost call of a Keras layer in this thread.

    `inner` makes the calls of layers by layers. Calls with symbolic inputs, which build a
    functional model, are left to Keras.
    """
    with _installing:
        _wrap(tf.keras.Layer, "__call__", _handled_call)
    _local.inner = inner
    try:
        with _handled_by(handler):
            yield
    finally:
        _local.inner = None


def _handled_call(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    handler = getattr(_local, "handler", None)
    if handler is None:
        return original(layer, *args, **kwargs)
    if is_symbolic((args, kwargs)):
        with _handled_by(None):
            return original(layer, *args, **kwargs)
    if handler is _left_to_keras:
        return _local.inner(layer, functools.partial(original, layer), args, kwargs)
    with _handled_by(_left_to_keras):
        return handler(layer, functools.partial(original, layer), args, kwargs)


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


def in_layer_call() -> bool:
    """Whether a handler is calling a Keras layer in this thread."""
    return getattr(_local, "handler", None) is _left_to_keras


def symbolic(arguments: Any) -> Any:
    """The arguments of a layer with symbolic tensors, which build the layer without running it."""
    keras = tf.keras

    def spec(x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype.name) if tf.is_tensor(x) else x

    return keras.tree.map_structure(spec, arguments)


def is_symbolic(arguments: Any) -> bool:
    """Whether any of these nested arguments is a symbolic tensor of Keras."""
    keras = tf.keras
    return any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(arguments))


def synchronized_layers(layer: Any) -> list[str]:
    """The names of a model's layers, or of this layer, that reduce over replicas themselves."""
    inner = [name for part in getattr(layer, "layers", []) for name in synchronized_layers(part)]
    return [*inner, layer.name] if getattr(layer, "synchronized", False) else inner


@contextlib.contextmanager
def state_of_later_tower(number: int, updates_state: bool) -> Iterator[None]:
    """While open, Keras layers called in this thread belong to a tower other than the first.

    Their random numbers are different for each `number`. Without `updates_state` they assign
    nothing, because the first tower, which has the same variables, does.
    """
    with _installing:
        _wrap(tf.keras.Variable, "assign", _assign)
        _wrap(tf.keras.random.SeedGenerator, "next", _next_seed)
    _local.tower = number, updates_state
    try:
        yield
    finally:
        _local.tower = None


def _assign(original: Callable[..., Any], variable: Any, value: Any) -> Any:
    tower = getattr(_local, "tower", None)
    if tower is not None and not tower[1] and in_layer_call():
        return value
    return original(variable, value)


def _next_seed(original: Callable[..., Any], generator: Any, *args: Any, **kwargs: Any) -> Any:
    seed = original(generator, *args, **kwargs)
    tower = getattr(_local, "tower", None)
    if tower is None:
        return seed
    return seed + tf.constant([tower[0] * SEED_STRIDE, 0], seed.dtype)


def _wrap(cls: Any, method: str, wrapper: Callable[..., Any]) -> None:
    """Replaces a method by `wrapper(original, self, ...)`, unless that was done before."""
    original = getattr(cls, method)
    if hasattr(original, "of_towerpack"):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    call.of_towerpack = True  # type: ignore[attr-defined]
    setattr(cls, method, call)


class _Owner(NamedTuple):
    variable: Any  # a keras.Variable, whose value is the tf.Variable
    layer: Any  # the outermost layer or model that the tower called


class KerasVariables:
    """The Keras objects that own variables: they have attributes that a `tf.Variable` lacks."""

    def __init__(self) -> None:
        self._owners: dict[Any, _Owner] = {}  # by the reference of the tf.Variable

    def add(self, layer: Any, variables: Iterable[Any]) -> None:
        """Records the Keras variables of a layer that was called in a tower."""
        self._owners.update({v.value.ref(): _Owner(v, layer) for v in variables})

    def why_frozen(self, variable: Any) -> str | None:
        """The Keras object whose `trainable` is False; None if there is none."""
        owner = self._owners.get(variable.ref())
        if owner is None or (owner.layer.trainable and owner.variable.trainable):
            return None
        if not owner.layer.trainable:
            return f"{owner.layer.name}.trainable=False"
        return f"{owner.variable.path.rpartition('/')[0]}.trainable=False"

    def constraint_of(self, variable: Any) -> Callable[[Any], Any] | None:
        """The function that each update of the variable ends with, if there is one."""
        owner = self._owners.get(variable.ref())
        return variable.constraint if owner is None else owner.variable.constraint

    def variable_of(self, variable: Any, name: str) -> Any:
        """The Keras variable of a variable. A new one has `name` as its path."""
        owner = self._owners.get(variable.ref())
        if owner is not None:
            return owner.variable
        *scopes, last = name.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(tf.keras.name_scope(scope))
            made = tf.keras.Variable(variable, name=last)  # keeps the tf.Variable as its value
        made.constraint = variable.constraint
        return made

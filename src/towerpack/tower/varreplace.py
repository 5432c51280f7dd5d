"""Variables replaced where they are read: frozen, quantized, or anything else computed from them.

These contexts act on every way to create a variable inside a tower: towerpack's layers,
`get_variable`, Keras layers and plain `tf.Variable`. They also act on Keras layers and models that
were created elsewhere and are called within them. The store and the checkpoint always hold the
variable itself.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.keras_layers import in_layer_call, symbolic
from towerpack.tower.store import NOT_TRAINABLE, VariableStore

Getter = Callable[..., Any]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.getters: list[Getter] = []  # of the open scopes
        self.raw: list[Any] = []  # variables that a Keras layer received without replacement


_thread = _Thread()


@contextlib.contextmanager
def custom_getter_scope(custom_getter: Getter) -> Iterator[None]:
    """While open, every variable is requested through `custom_getter(getter, *args, **kwargs)`.

    It may change the arguments (by name: `trainable`, `dtype`, ...) and the result. The variables
    of a Keras layer are requested in each of its calls.
    """
    _thread.getters.append(custom_getter)
    try:
        with creation_scope(custom_getter):
            yield
    finally:
        _thread.getters.pop()


@contextlib.contextmanager
def creation_scope(custom_getter: Getter) -> Iterator[None]:
    """`custom_getter_scope` for variables that are created, or requested by `get_variable`."""

    def creator(next_creator: Getter, **kwargs: Any) -> Any:
        # `get_variable` has called the getter already.
        if VariableStore.current().creating:
            return next_creator(**kwargs)
        made = []

        def make(name: str, **changed: Any) -> Any:
            made.append(next_creator(name=name, **changed))
            return made[-1]

        # The name is passed by position, as `get_variable` does.
        name = kwargs.pop("name", None)
        got = custom_getter(make, name, **kwargs)
        if not made or made[-1] is got or not in_layer_call():
            return got
        # Keras keeps the variable itself; `call_layer` replaces its value in each call.
        _thread.raw.append(made[-1])
        return made[-1]

    scope = v1.get_variable_scope()
    with (
        tf.variable_creator_scope(creator),
        v1.variable_scope(scope, custom_getter=custom_getter, auxiliary_name_scope=False),
    ):
        yield


def call_layer(
    layer: Any, call: Getter, args: tuple[Any, ...], kwargs: dict[str, Any], store: VariableStore
) -> Any:
    """Calls a Keras layer with its variables replaced by the results of the open getters."""
    getters, raw = _thread.getters, _thread.raw
    raw.clear()
    if not getters:
        outputs = call(*args, **kwargs)
    else:
        outputs = _call_replaced(getters, layer, call, args, kwargs, store)
    # Variables that the layer owns were replaced above; nothing replaces the others.
    owned = [variable.value for variable in layer.variables] if getters and raw else []
    for variable in raw:
        frozen = store.why_frozen(variable) not in (None, NOT_TRAINABLE)
        if not frozen and not any(variable is known for known in owned):
            raise ValueError(
                "freeze_variables, remap_variables and custom getters do not reach the variable "
                f"{store.name_of(variable)!r}: the Keras layer {layer.name!r} creates it in its "
                "call. Create it in build() with self.add_weight(), and call the whole layer under "
                "the context"
            )
    raw.clear()
    return outputs


def _call_replaced(
    getters: list[Getter],
    layer: Any,
    call: Getter,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    store: VariableStore,
) -> Any:
    if not layer.built:
        call(*symbolic(args), **symbolic(kwargs))
    store.adopt_layer(layer)
    replaced = []
    for variable in layer.variables:
        value = _ask(getters, variable, store)
        if value is not variable.value:
            replaced.append((variable, value))
    if not replaced:
        return call(*args, **kwargs)
    scope = tf.keras.StatelessScope(replaced, collect_losses=True)
    before = [scope.get_current_value(variable) for variable in layer.variables]
    with scope:
        outputs = call(*args, **kwargs)
    # Keras has collected the assignments (for example of moving averages) and the losses.
    for variable, old in zip(layer.variables, before, strict=True):
        new = scope.get_current_value(variable)
        if new is not old:
            variable.assign(new)
    for loss in scope.losses:
        tf.keras.Layer.add_loss(layer, loss)  # a functional model has no add_loss of its own
    return outputs


def _ask(getters: list[Getter], variable: Any, store: VariableStore) -> Any:
    """The value of a Keras variable after all getters, the innermost first."""
    value = variable.value
    if not isinstance(value, tf.Variable):
        return value

    def get(name: str, **options: Any) -> Any:
        if options["trainable"] is False and variable.trainable:
            store.freeze(value, "a custom getter")
        return value

    for getter in getters:
        get = functools.partial(getter, get)
    return get(
        store.name_of(value), shape=value.shape, dtype=value.dtype, trainable=variable.trainable
    )


@contextlib.contextmanager
def remap_variables(fn: Callable[[Any], Any]) -> Iterator[None]:
    """While open, code that requests a variable gets `fn(variable)`, such as quantized weights.

    If `fn` returns the variable itself, nothing changes.
    """

    def getter(getter: Getter, *args: Any, **kwargs: Any) -> Any:
        return fn(getter(*args, **kwargs))

    with custom_getter_scope(getter):
        yield


@contextlib.contextmanager
def freeze_variables(stop_gradient: bool = True, skip_collection: bool = False) -> Iterator[None]:
    """While open, requested variables are not trained.

    `stop_gradient` lets no gradient of the tower's output through. The variables still count as
    trainable, so weight decay that is added to the cost still changes them. `skip_collection` makes
    them not trainable at all: truly frozen.
    """

    def getter(getter: Getter, *args: Any, **kwargs: Any) -> Any:
        trainable = kwargs.get("trainable")
        if skip_collection:
            kwargs["trainable"] = False
        variable = getter(*args, **kwargs)
        if trainable is False:
            return variable
        if skip_collection and isinstance(variable, tf.Variable):
            VariableStore.current().freeze(variable, "freeze_variables")
        return tf.stop_gradient(variable) if stop_gradient else variable

    with custom_getter_scope(getter):
        yield

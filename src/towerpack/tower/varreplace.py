"""What code gets when it asks for a variable: frozen, quantized, or anything else made of it.

These contexts act on every way to make a variable inside a tower: towerpack's layers,
`get_variable`, Keras layers and plain `tf.Variable`. They also act on Keras layers and models that
were made elsewhere and are called within them. The store and the checkpoint always hold the
variable itself.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.keras_names import in_layer_call, symbolic
from towerpack.tower.store import VariableStore

Getter = Callable[..., Any]

_open = threading.local()


@contextlib.contextmanager
def custom_getter_scope(custom_getter: Getter) -> Iterator[None]:
    """Within it every variable is asked for through `custom_getter(getter, *args, **kwargs)`.

    It may change the arguments (by name: `trainable`, `dtype`, ...) and the result. The variables
    of a Keras layer are asked for in each of its calls.
    """
    getters: list[Getter] = _open.__dict__.setdefault("getters", [])
    getters.append(custom_getter)
    try:
        with creation_scope(custom_getter):
            yield
    finally:
        getters.pop()


@contextlib.contextmanager
def creation_scope(custom_getter: Getter) -> Iterator[None]:
    """`custom_getter_scope` for variables that are made within it, or by `get_variable`."""

    def creator(next_creator: Getter, **kwargs: Any) -> Any:
        # A variable that `get_variable` makes has been through the getter already.
        if VariableStore.current().is_making:
            return next_creator(**kwargs)
        made = []

        def make(name: str, **changed: Any) -> Any:
            made.append(next_creator(name=name, **changed))
            return made[-1]

        # The name goes by position, as `get_variable` passes it.
        name = kwargs.pop("name", None)
        got = custom_getter(make, name, **kwargs)
        # A Keras layer keeps the variable; `call_layer` replaces its value in each call.
        return made[-1] if made and in_layer_call() else got

    scope = v1.get_variable_scope()
    with (
        tf.variable_creator_scope(creator),
        v1.variable_scope(scope, custom_getter=custom_getter, auxiliary_name_scope=False),
    ):
        yield


def call_layer(
    layer: Any, call: Getter, args: tuple[Any, ...], kwargs: dict[str, Any], store: VariableStore
) -> Any:
    """Calls a Keras layer with what the open getters make of its variables."""
    getters: list[Getter] = _open.__dict__.get("getters", [])
    if not getters:
        return call(*args, **kwargs)
    if not layer.built:
        call(*symbolic(args), **symbolic(kwargs))
    store.take_in_layer(layer)
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
    # Keras has collected the assignments (of moving averages, say) and the losses.
    for variable, old in zip(layer.variables, before, strict=True):
        new = scope.get_current_value(variable)
        if new is not old:
            variable.assign(new)
    for loss in scope.losses:
        tf.keras.Layer.add_loss(layer, loss)  # a functional model has none of its own
    return outputs


def _ask(getters: list[Getter], variable: Any, store: VariableStore) -> Any:
    """What the getters, the innermost first, make of a Keras variable."""
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
    """Within it code gets `fn(variable)` where it asks for a variable: quantized weights, say.

    Where `fn` returns the variable itself nothing changes.
    """

    def getter(getter: Getter, *args: Any, **kwargs: Any) -> Any:
        return fn(getter(*args, **kwargs))

    with custom_getter_scope(getter):
        yield


@contextlib.contextmanager
def freeze_variables(stop_gradient: bool = True, skip_collection: bool = False) -> Iterator[None]:
    """Within it variables are not trained.

    `stop_gradient` lets no gradient through; the variables still count as trainable, so that what
    else acts on these, such as weight decay added to the cost, still does. `skip_collection` makes
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

"""What code gets when it asks for a variable: frozen, quantized, or anything else made of it.

These contexts act on every way to make a variable inside a tower: towerpack's layers,
`get_variable`, Keras layers and plain `tf.Variable`. The store and the checkpoint always hold the
variable itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.store import VariableStore

Getter = Callable[..., Any]


@contextlib.contextmanager
def custom_getter_scope(custom_getter: Getter) -> Iterator[None]:
    """Within it every variable is asked for through `custom_getter(getter, *args, **kwargs)`.

    It may change the arguments (by name: `trainable`, `dtype`, ...) and the result.
    """

    def creator(next_creator: Getter, **kwargs: Any) -> Any:
        # A variable that `get_variable` makes has been through the getter already.
        if VariableStore.current().is_making:
            return next_creator(**kwargs)
        # The name goes by position, as `get_variable` passes it.
        name = kwargs.pop("name", None)
        return custom_getter(
            lambda name, **changed: next_creator(name=name, **changed), name, **kwargs
        )

    scope = v1.get_variable_scope()
    with (
        tf.variable_creator_scope(creator),
        v1.variable_scope(scope, custom_getter=custom_getter, auxiliary_name_scope=False),
    ):
        yield


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
        if stop_gradient and trainable is not False:
            return tf.stop_gradient(variable)
        return variable

    with custom_getter_scope(getter):
        yield

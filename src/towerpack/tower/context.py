"""What the code inside a tower may know: is this training, which tower, whose variables."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from towerpack._tensorflow import tf, v1
from towerpack.tower.keras_names import fresh_layer_names, layer_calls_through
from towerpack.tower.keras_state import state_of_later_tower
from towerpack.tower.layer_calls import record_keras_layer
from towerpack.tower.store import VariableStore
from towerpack.tower.varreplace import call_layer

_current = threading.local()


class MovingSummary(NamedTuple):
    """A scalar to be averaged over steps; `decay` as in an exponential moving average."""

    name: str
    tensor: Any
    decay: float


class Summary(NamedTuple):
    """Something to show now and then: kind is 'scalar', 'histogram' or 'image'."""

    kind: str
    name: str
    tensor: Any


class TowerContext:
    """The context in which trainers and predictors call a tower function.

    Inside it `get_current_tower_context()` returns it, every variable comes from `store`, and names
    of operations begin with `name` (nothing for the first tower). Contexts do not nest. The same
    context may be entered again, and finds its variables.

    Without a `store` it makes one: `TowerContext("", is_training=False)` builds a model anywhere,
    eagerly, in a `tf.function` or in a `tf.Graph`, and `context.store.saved()` are its variables.
    """

    def __init__(
        self,
        name: str,
        is_training: bool,
        *,
        store: VariableStore | None = None,
        index: int = 0,
        total: int = 1,
        vs_name: str = "",
        own_store: bool = False,
        probing: bool = False,
        repeated: bool = False,
    ):
        self.name, self.is_training = name, is_training
        self.store = VariableStore() if store is None else store
        self.index, self.total, self.vs_name = index, total, vs_name
        self._own_store = own_store
        self.probing = probing  # built by itself, to make its variables, and never run
        self.repeated = repeated  # the step has another tower like this one, which updates state
        self.moving_summaries: list[MovingSummary] = []
        self.summaries: list[Summary] = []
        self.at_end: list[Callable[[], None]] = []
        self.names_used = 0
        self.seeds_used = 0
        self._stack = contextlib.ExitStack()

    @property
    def is_main_training_tower(self) -> bool:
        return self.is_training and self.index == 0

    @property
    def has_own_variables(self) -> bool:
        """Whether this tower has variables that no tower before it has, and so keeps their state.

        The first one has; others only if they have a store or a variable scope of their own.
        """
        return self.index == 0 or self._own_store or bool(self.vs_name)

    @property
    def updates_state(self) -> bool:
        """Whether layers update their own state here, such as moving averages: once in a step."""
        return self.has_own_variables and not self.repeated

    @property
    def ns_name(self) -> str:
        return self.name

    def get_collection_in_tower(self, key: str) -> list[Any]:
        """What this tower has put into a collection of its graph."""
        prefix = f"{self.name}/" if self.name else ""
        items = v1.get_collection(key)
        return [item for item in items if getattr(item, "name", "").startswith(prefix)]

    def without_prefix(self, op_name: str) -> str:
        """The name as users know it."""
        return op_name.removeprefix(f"{self.name}/") if self.name else op_name

    def __enter__(self) -> TowerContext:
        if getattr(_current, "context", None) is not None:
            raise RuntimeError(
                f"a tower is being built already ({_current.context!r}); tower contexts do not nest"
            )
        with self._stack as stack:
            stack.enter_context(fresh_layer_names())
            stack.enter_context(layer_calls_through(self._call_layer))
            number = self.index + (self.total if self.repeated else 0)
            if number:
                stack.enter_context(state_of_later_tower(number, self.updates_state))
            stack.enter_context(self.store.scope(f"{self.name}/" if self.name else ""))
            if self.vs_name:
                stack.enter_context(v1.variable_scope(self.vs_name))
            if self.name:
                # The trailing slash takes the name as it is, where TensorFlow would add a number.
                stack.enter_context(tf.name_scope(f"{self.name}/"))
            self._stack = stack.pop_all()
        _current.context = self
        return self

    def _call_layer(
        self, layer: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a Keras layer or model in the tower's training mode, unless the caller gave one."""
        if kwargs.get("training") is None:
            kwargs = {**kwargs, "training": self.is_training}
        outputs = call_layer(layer, call, args, kwargs, self.store)
        self.store.take_in_layer(layer)
        if self.is_main_training_tower:
            record_keras_layer(self.store, layer, args, outputs)
        return outputs

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                for action in self.at_end:  # what needs to know all variables of the tower
                    action()
        except BaseException:
            kind, error, traceback = sys.exc_info()
            raise
        finally:
            _current.context = None
            self._stack.__exit__(kind, error, traceback)

    @contextlib.contextmanager
    def resumed(self) -> Iterator[TowerContext]:
        """The context once more, after the tower was built: to apply its gradients, say."""
        if getattr(_current, "context", None) is not None:
            raise RuntimeError(f"{_current.context!r} is still open; tower contexts do not nest")
        _current.context = self
        try:
            with self.store.scope(f"{self.name}/" if self.name else ""):
                yield self
        finally:
            _current.context = None

    def __repr__(self) -> str:
        return f"TowerContext(name={self.name!r}, is_training={self.is_training})"


BaseTowerContext = TowerContext
"""The old name of the type, as code that checks for it knows it."""


def get_current_tower_context() -> TowerContext | None:
    """The context of the tower being built in this thread; None outside of one."""
    return getattr(_current, "context", None)

"""The context of a tower: whether it is for training, its index, its variables, its summaries."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from towerpack._tensorflow import tf, v1
from towerpack.tower.keras_layers import (
    fresh_layer_names,
    layer_calls_through,
    state_of_later_tower,
    synchronized_layers,
)
from towerpack.tower.layer_calls import LayerCalls
from towerpack.tower.store import VariableStore
from towerpack.tower.varreplace import call_layer

_current = threading.local()

SumOverRanks = Callable[[Sequence[Any]], Sequence[Any]]
"""Adds up each of several tensors over this tower and its like on all ranks."""


class MovingSummary(NamedTuple):
    """A scalar that is averaged over steps; `decay` as in an exponential moving average."""

    name: str
    tensor: Any
    decay: float


class Summary(NamedTuple):
    """A value that is logged from time to time: kind is 'scalar', 'histogram' or 'image'."""

    kind: str
    name: str
    tensor: Any


class TowerContext:
    """The context in which trainers and predictors call a tower function.

    Inside it `get_current_tower_context()` returns it, every variable comes from `store`, and names
    of operations begin with `name` (empty for the first tower). Contexts do not nest. The same
    context may be entered again and finds its variables.

    Without a `store` it creates one: `TowerContext("", is_training=False)` builds a model anywhere,
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
        sum_over_ranks: SumOverRanks | None = None,
    ):
        self.name = self.ns_name = name
        self.is_training = is_training
        self.store = VariableStore() if store is None else store
        self.index, self.total, self.vs_name = index, total, vs_name
        self._own_store = own_store
        self.probing = probing  # built only to create its variables, and never run
        self.repeated = repeated  # the step has another tower like this one, which updates state
        self.sum_over_ranks = sum_over_ranks  # with gradients; None if one process trains
        self.moving_summaries: list[MovingSummary] = []
        self.summaries: list[Summary] = []
        self.at_end: list[Callable[[], None]] = []
        self.names_used = 0
        self.seeds_used = 0
        self.layer_calls = LayerCalls()
        self._stack = contextlib.ExitStack()

    @property
    def is_main_training_tower(self) -> bool:
        return self.is_training and self.index == 0

    @property
    def has_own_variables(self) -> bool:
        """Whether this tower has variables that no earlier tower has, and so keeps their state.

        The first tower does. Others do only if they have their own store or variable scope.
        """
        return self.index == 0 or self._own_store or bool(self.vs_name)

    @property
    def updates_state(self) -> bool:
        """Whether layers update their own state here, such as moving averages: once per step."""
        return self.has_own_variables and not self.repeated

    def get_collection_in_tower(self, key: str) -> list[Any]:
        """The items that this tower added to a collection of its graph."""
        prefix = f"{self.name}/" if self.name else ""
        items = v1.get_collection(key)
        return [item for item in items if getattr(item, "name", "").startswith(prefix)]

    def without_prefix(self, op_name: str) -> str:
        """The name without the prefix of the tower, as users write it."""
        return op_name.removeprefix(f"{self.name}/") if self.name else op_name

    def __enter__(self) -> TowerContext:
        if getattr(_current, "context", None) is not None:
            raise RuntimeError(
                f"another tower is being built ({_current.context!r}); tower contexts do not nest"
            )
        self.layer_calls = LayerCalls()
        with self._stack as stack:
            stack.enter_context(fresh_layer_names())
            stack.enter_context(layer_calls_through(self._call_layer, self._record_part))
            number = self.index + (self.total if self.repeated else 0)
            if number:
                stack.enter_context(state_of_later_tower(number, self.updates_state))
            stack.enter_context(self.store.scope(f"{self.name}/" if self.name else ""))
            if self.vs_name:
                stack.enter_context(v1.variable_scope(self.vs_name))
            if self.name:
                # With the trailing slash TensorFlow adds no number to the name.
                stack.enter_context(tf.name_scope(f"{self.name}/"))
            stack.callback(setattr, _current, "context", None)
            stack.push(self._run_at_end)
            self._stack = stack.pop_all()
        _current.context = self
        return self

    def _call_layer(
        self, layer: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a Keras layer or model in the tower's training mode, unless the caller gave one."""
        if self.sum_over_ranks is not None and (found := synchronized_layers(layer)):
            raise ValueError(
                f"expected batch norms that several ranks can compute, received {found[0]!r} of "
                "Keras with synchronized=True, which knows only the towers of one process. Use "
                "towerpack's BatchNorm with sync_statistics=True, or synchronized=False"
            )
        if kwargs.get("training") is None:
            kwargs = {**kwargs, "training": self.is_training}
        with self._recorded(layer, args) as record:
            outputs = call_layer(layer, call, args, kwargs, self.store)
            self.store.adopt_layer(layer)
            if record is not None:
                name = f"{_variable_scope(layer, self.store)}/{layer.name}".lstrip("/")
                record.complete(name, outputs, [v.value for v in layer.variables])
        return outputs

    def _record_part(
        self, layer: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records the call of a layer by a Keras model that the tower called."""
        with self._recorded(layer, args) as record:
            outputs = call(*args, **kwargs)
            if record is not None:
                record.complete(layer.name, outputs, [v.value for v in layer.variables])
        return outputs

    def _recorded(self, layer: Any, args: Any) -> Any:
        x = args[0] if len(args) == 1 else list(args)
        return self.layer_calls.call(type(layer).__name__, x, isinstance(layer, tf.keras.Model))

    def _run_at_end(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for action in self.at_end:  # these need to know all variables of the tower
                action()

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    @contextlib.contextmanager
    def resumed(self) -> Iterator[TowerContext]:
        """Opens the context again after the tower was built, for example to apply gradients."""
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


def get_current_tower_context() -> TowerContext | None:
    """The context of the tower being built in this thread; None outside of one."""
    return getattr(_current, "context", None)


def _variable_scope(layer: Any, store: VariableStore) -> str:
    """The variable scope of a Keras layer: the part of a name before the path that Keras gives."""
    for variable in layer.variables:
        if isinstance(variable.value, tf.Variable):
            name, path = store.name_of(variable.value), variable.path
            return name.removesuffix(path).rstrip("/") if name.endswith(path) else ""
    return v1.get_variable_scope().name

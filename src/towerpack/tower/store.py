"""The variables of a model: each is created once and found again by its name.

A `VariableStore` belongs to one model (one trainer or one predictor). While its `scope` is open,
every variable comes from it, whichever library creates it.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.tower.creation import NOT_LIFTED, StoreScope, current_scope, thread
from towerpack.tower.keras_layers import KerasVariables

NOT_TRAINABLE = "trainable=False"  # of a variable that is never trained, such as a moving average
GLOBAL_STEP = "global_step"


class VariableStore:
    """The variables of one model, in the order of their creation.

    Once the model is complete (`complete`), a new trainable variable is an error, because the
    optimizer and the checkpoint would not know it.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}
        self.keras = KerasVariables()
        self.complete_reason: str | None = None
        self.creating = False  # whether a variable is being created whose name is known already
        self.unbuilt: list[str] = []  # Keras objects whose variables do not exist yet
        self.summary_names: list[str] = []
        self.rates: dict[str, float] = {}  # the learning rates that optimizers requested
        self.unmatched: set[str] = set()  # patterns of `regularize_cost` that match no variable
        self.plain_counts: dict[str, int] | None = None  # see StoreScope.check_counts
        self._local: set[str] = set()
        self._frozen: dict[Any, str] = {}  # why a variable is not trained, by its reference

    @staticmethod
    def current() -> VariableStore:
        """The store whose scope is open in this thread."""
        return current_scope().store

    @contextlib.contextmanager
    def scope(self, prefix: str = "") -> Iterator[None]:
        """While open, every variable created or requested in this thread comes from this store.

        `prefix` is the name scope of a tower, which is not part of the names of variables.
        """
        opened = StoreScope(self, prefix)
        thread.scopes.append(opened)
        # A new root scope: TensorFlow's own, once it was made in eager mode, shares everything.
        root = v1.VariableScope(None, "", use_resource=True, custom_getter=opened.getter)
        try:
            with tf.variable_creator_scope(opened.creator), v1.variable_scope(root):
                yield
                opened.check_counts()
        finally:
            thread.scopes.pop()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """While open, variables are created apart from the store, as if its scope were closed."""
        before, self.creating = self.creating, True
        try:
            yield
        finally:
            self.creating = before

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """While open, variables (of metrics) are created outside of the trace and of the store."""

        def creator(next_creator: Callable[..., Any], **options: Any) -> Any:
            with tf.init_scope():
                return next_creator(**options)

        with self.aside(), tf.variable_creator_scope(creator):
            yield

    @functools.cached_property
    def seed(self) -> int:
        """The seed of the tower's random numbers: from `tf.random.set_seed`, otherwise random."""
        with tf.init_scope():
            return int(tf.random.uniform([], maxval=2**31 - 1, dtype=tf.int32))

    def __getitem__(self, name: str) -> Any:
        if name not in self.variables:
            near = difflib.get_close_matches(name, self.variables, n=3)
            hint = f"; the nearest are {near}" if near else ""
            raise KeyError(f"no variable is named {name!r}{hint}")
        return self.variables[name]

    def __contains__(self, name: str) -> bool:
        return name in self.variables

    def has(self, variable: Any) -> bool:
        return any(known is variable for known in self.variables.values())

    def name_of(self, variable: Any) -> str:
        """The name of this variable in the store."""
        for name, known in self.variables.items():
            if known is variable:
                return name
        raise KeyError(f"the store does not know the variable {variable.name!r}")

    def saved(self) -> dict[str, Any]:
        """The variables of a checkpoint: all but the local ones, such as running summaries."""
        return {name: var for name, var in self.variables.items() if name not in self._local}

    def trainable(self) -> dict[str, Any]:
        """The variables that are trained."""
        return {n: v for n, v in self.variables.items() if self.why_frozen(v) is None}

    def frozen(self) -> dict[str, str]:
        """The trainable variables that are frozen, with the reason."""
        reasons = {name: self.why_frozen(v) for name, v in self.variables.items()}
        return {name: why for name, why in reasons.items() if why not in (None, NOT_TRAINABLE)}

    def why_frozen(self, variable: Any) -> str | None:
        """Why this variable is not trained; None if it is trained.

        `trainable` of Keras objects may change until the model is complete. Later changes have no
        effect.
        """
        if variable.ref() in self._frozen:
            return self._frozen[variable.ref()]
        if not variable.trainable:
            return NOT_TRAINABLE
        return None if self.complete_reason else self.keras.why_frozen(variable)

    def freeze(self, variable: Any, reason: str) -> None:
        """Excludes a variable from training, unless the model is complete."""
        if not self.complete_reason:
            self._frozen[variable.ref()] = reason

    def complete(self, reason: str) -> None:
        """Fixes which variables are trained; `reason` says why new ones come too late."""
        self._frozen.update(
            {v.ref(): why for v in self.variables.values() if (why := self.why_frozen(v))}
        )
        self.complete_reason = reason

    def check_not_late(self, name: str) -> None:
        """Raises an error if it is too late for a new trainable variable."""
        if self.complete_reason:
            near = difflib.get_close_matches(name, self.variables, n=3)
            raise ValueError(
                f"the trainable variable {name!r} appeared only now, but {self.complete_reason}. A "
                "tower function must create the same variables in every call: does a name in it "
                "depend on a counter or on the input? Known variables with similar names: "
                f"{near or list(self.variables)[:5]}"
            )

    def make(
        self,
        name: str,
        initial_value: Callable[[], Any],
        *,
        trainable: bool,
        local: bool = False,
        **options: Any,
    ) -> Any:
        """The variable of this name, which is created if it does not exist."""
        if name in self.variables:
            return self.variables[name]
        if trainable:
            self.check_not_late(name)
        # init_scope leaves the trace: otherwise the variable would belong to one graph only.
        with self.aside(), tf.init_scope():
            variable = tf.Variable(
                initial_value, trainable=trainable, name=name, **NOT_LIFTED, **options
            )
        self.variables[name] = variable
        if local:
            self._local.add(name)
        return variable

    def adopt(self, name: str, variable: Any, local: bool = False) -> str:
        """Adds a variable that was created elsewhere; a name that is taken gets a number."""
        if self.has(variable):
            return self.name_of(variable)
        unique, number = name, 1
        while unique in self.variables:
            unique, number = f"{name}_{number}", number + 1
        self.variables[unique] = variable
        if local:
            self._local.add(unique)
        return unique

    def rename(self, variable: Any, name: str) -> None:
        """Gives a variable of the store another name, if that is free."""
        old = self.name_of(variable)
        if name not in self.variables:
            self.variables = {name if k == old else k: v for k, v in self.variables.items()}

    def leave_out(self, variable: Any) -> None:
        """Leaves a variable of the store out of checkpoints."""
        self._local.add(self.name_of(variable))

    def adopt_all(self, variables: Iterable[Any]) -> None:
        """Adds variables under their own names, except those that the store has already.

        Those with equal names get numbers in the order of their creation. A trace lists its
        variables in no particular order, and numbers must be the same in every process.
        """
        self._adopt_in_order(sorted(variables, key=_creation_number))

    def adopt_layer(self, layer: Any) -> None:
        """Adds the variables of a Keras layer or model that was called in a tower."""
        # A value may be a tensor made from the variable, which the store then has already.
        owned = [v for v in layer.variables if isinstance(v.value, tf.Variable)]
        self._adopt_in_order(variable.value for variable in owned)
        self.keras.add(layer, owned)

    def _adopt_in_order(self, variables: Iterable[Any]) -> None:
        numbered = {}
        for variable in variables:
            if not self.has(variable):
                name = variable.name.removesuffix(":0")
                unique = self.adopt(name, variable)
                if unique != name:
                    numbered[unique] = name
        if numbered:
            logger.warning(
                "several variables have the same name and were numbered in their order: %s. A "
                "model that has only some of them, for example for prediction, would load the "
                "wrong ones: give each layer or variable its own name",
                numbered,
            )


def _creation_number(variable: Any) -> int:
    """A number that grows with each variable that the process creates.

    TensorFlow has no public one. A `tf.GradientTape` lists the variables that it watches by it.
    """
    return variable.handle._id


def get_global_step_var() -> Any:
    """The variable that counts training steps. It is saved with the model, and always the same.

    Call it where a model is built: in a tower function or in `optimizer()`.
    """
    return VariableStore.current().make(
        GLOBAL_STEP, lambda: tf.zeros([], tf.int64), trainable=False
    )


def get_global_step_value(store: VariableStore) -> int:
    """The number of steps that a model was trained, outside of any trace."""
    return int(store[GLOBAL_STEP].numpy())

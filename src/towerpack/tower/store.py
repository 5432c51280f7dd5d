"""Variables by name: made once, found again by whoever asks.

A `VariableStore` belongs to one model (one trainer or one predictor). While its `scope` is open,
`tf.compat.v1.get_variable`, which the layers use too, looks a variable up by its full scoped name
and makes it only when it is not there; `tf.Variable` goes the same way under the open variable
scope. Variables are real ones, made outside of any trace, so that further traces, other towers,
inference and checkpoints share them.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.tower.lifting import lift

_open = threading.local()

# A variable made inside of a `tf.function` would be lifted out of it, and the function traced once
# more, without it. These are made outside already.
MADE_AT_ONCE = {"experimental_enable_variable_lifting": False}


@dataclass
class _Visit:
    """One opening of the store: what was asked for since, to tell sharing from accident."""

    store: VariableStore
    prefix: str  # of the tower's name scope, which is no part of variable names
    names: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)  # of plain variables, by name
    functions: set[Any] = field(default_factory=set)
    losses: dict[str, Any] = field(default_factory=dict)  # of regularizers, by variable


# Why a variable that was never meant to be trained, a moving average say, is not.
NOT_TRAINABLE = "trainable=False"


class KerasOwner(NamedTuple):
    """The Keras objects of a variable: they have attributes that the `tf.Variable` does not."""

    variable: Any  # a keras.Variable, whose value is the tf.Variable
    layer: Any  # the outermost layer or model that the tower called


class VariableStore:
    """The variables of one model, in the order in which they were made.

    Once the model is complete (`complete`), a trainable variable that appears is an error, because
    the optimizer and the checkpoint would not know it.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}
        self.complete_reason: str | None = None
        self.unbuilt: list[str] = []  # Keras objects whose variables do not exist yet
        self.summary_names: list[str] = []
        self.layers: dict[str, Any] = {}  # those called, as `layer_calls` records them
        self.rates: dict[str, float] = {}  # what optimizers asked their learning rates to be
        self._local: set[str] = set()
        self._keras: dict[Any, KerasOwner] = {}  # by the reference of the tf.Variable
        self._frozen: dict[Any, str] = {}  # likewise, why a variable is not trained
        self._first_counts: dict[str, int] | None = None
        self._making = False

    @functools.cached_property
    def seed(self) -> int:
        """What the tower's random numbers begin from; by chance, or from `tf.random.set_seed`."""
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

    def trainable(self) -> dict[str, Any]:
        """The variables that are trained."""
        return {n: v for n, v in self.variables.items() if self.why_frozen(v) is None}

    def why_frozen(self, variable: Any) -> str | None:
        """Why this variable is not trained; None if it is.

        `trainable` of Keras objects may change until the model is complete, and not after that.
        """
        ref = variable.ref()
        if ref in self._frozen:
            return self._frozen[ref]
        if not variable.trainable:
            return NOT_TRAINABLE
        owner = self._keras.get(ref)
        if owner is None or self.complete_reason:
            return None
        if not owner.layer.trainable:
            return f"{owner.layer.name}.trainable=False"
        if owner.variable.trainable:
            return None
        return f"{owner.variable.path.rpartition('/')[0]}.trainable=False"

    def frozen(self) -> dict[str, str]:
        """Why each variable that was made to be trained, and is not, is frozen."""
        reasons = {name: self.why_frozen(v) for name, v in self.variables.items()}
        return {name: why for name, why in reasons.items() if why not in (None, NOT_TRAINABLE)}

    def freeze(self, variable: Any, reason: str) -> None:
        """Excludes a variable from training, unless the model is complete."""
        if not self.complete_reason:
            self._frozen[variable.ref()] = reason

    def complete(self, reason: str) -> None:
        """Fixes which variables are trained; `reason` says why it is too late for further ones."""
        self._frozen.update(
            {v.ref(): why for v in self.variables.values() if (why := self.why_frozen(v))}
        )
        self.complete_reason = reason

    def take_in_layer(self, layer: Any) -> None:
        """Takes in the variables of a Keras layer or model that was called in a tower."""
        # A value may be a tensor that was made of the variable, which the store then knows already.
        owned = [v for v in layer.variables if isinstance(v.value, tf.Variable)]
        self._adopt_in_order(variable.value for variable in owned)
        self._keras.update({v.value.ref(): KerasOwner(v, layer) for v in owned})

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds: everything but local variables (running summaries and such)."""
        return {name: var for name, var in self.variables.items() if name not in self._local}

    @contextlib.contextmanager
    def scope(self, prefix: str = "") -> Iterator[None]:
        """While open, every variable created or asked for in this thread comes from this store.

        `prefix` is the name scope of a tower, which does not belong to the names of variables.
        """
        visit = _Visit(self, prefix)
        visits: list[_Visit] = _open.__dict__.setdefault("visits", [])
        visits.append(visit)
        # A scope of its own: TensorFlow's root scope, once made in eager mode, shares everything.
        root = v1.VariableScope(None, "", use_resource=True, custom_getter=self._getter)
        try:
            with tf.variable_creator_scope(self._creator), v1.variable_scope(root):
                yield
                self._check_counts(visit.counts)
        finally:
            visits.pop()

    def _visit(self) -> _Visit:
        """The latest opening of this store in this thread."""
        return next(v for v in reversed(_open.__dict__["visits"]) if v.store is self)

    def first_visit(self, key: Any) -> bool:
        """Whether `key` (a function under a scope) comes for the first time in this tower."""
        seen = self._visit().functions
        new = key not in seen
        seen.add(key)
        return new

    def regularization_losses(self) -> list[Any]:
        """What the `regularizer` arguments of the variables of the tower being built gave."""
        return list(self._visit().losses.values())

    def _check_counts(self, counts: Counter[str]) -> None:
        """Refuses names that several plain variables share, when not all are asked for again.

        Such names are told apart by their order. A layer made outside of the tower function makes
        its variables in the first call only; one made inside, under the same name, would then find
        the other's.
        """
        if self._first_counts is None:
            self._first_counts = dict(counts)
            return
        for name, first in self._first_counts.items():
            if first > 1 and counts[name] not in (0, first):
                raise ValueError(
                    f"{first} variables named {name!r} were made when the tower was built first, "
                    f"but {counts[name]} now; give each a name of its own, also the layers made "
                    "outside of the tower function"
                )

    @staticmethod
    def current() -> VariableStore:
        """The store whose scope is open in this thread."""
        visits = _open.__dict__.get("visits")
        if not visits:
            raise RuntimeError("no model is being built here: there is no open variable store")
        return visits[-1].store

    def make(
        self,
        name: str,
        initial_value: Callable[[], Any],
        *,
        trainable: bool,
        local: bool = False,
        **options: Any,
    ) -> Any:
        """The variable of this name, made now if it is not there."""
        if name in self.variables:
            return self.variables[name]
        if trainable:
            self._check_not_late(name)
        # init_scope leaves the trace: without it the variable would belong to one graph only.
        with self.aside(), tf.init_scope():
            variable = tf.Variable(
                initial_value, trainable=trainable, name=name, **MADE_AT_ONCE, **options
            )
        self.variables[name] = variable
        if local:
            self._local.add(name)
        return variable

    def _check_not_late(self, name: str) -> None:
        if self.complete_reason:
            near = difflib.get_close_matches(name, self.variables, n=3)
            raise ValueError(
                f"the trainable variable {name!r} appeared only now, but {self.complete_reason}. A "
                "tower function must make the same variables on every call: does a name in it "
                "depend on a counter or on the input? Known and similar: "
                f"{near or list(self.variables)[:5]}"
            )

    def constraint_of(self, variable: Any) -> Callable[[Any], Any] | None:
        """The function that each update of the variable ends with, if there is one."""
        owner = self._keras.get(variable.ref())
        return variable.constraint if owner is None else owner.variable.constraint

    def as_keras(self, variable: Any) -> Any:
        """The Keras variable of a variable, made if it has none; its path is then its name here."""
        owner = self._keras.get(variable.ref())
        if owner is not None:
            return owner.variable
        *scopes, name = self.name_of(variable).split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(tf.keras.name_scope(scope))
            made = tf.keras.Variable(variable, name=name)  # takes a tf.Variable as its value
        made.constraint = variable.constraint
        return made

    def adopt(self, name: str, variable: Any, local: bool = False) -> str:
        """Takes in a variable that was made elsewhere; a name that is taken gets a number."""
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
        """Gives a variable that the store knows another name, if that is free."""
        old = self.name_of(variable)
        if name not in self.variables:
            self.variables = {name if k == old else k: v for k, v in self.variables.items()}

    def adopt_all(self, variables: Iterable[Any]) -> None:
        """Takes in variables under their own names; those that are known are left as they are.

        Those of equal names get numbers in the order in which they were made. A trace lists its
        variables in no particular order, and numbers must be the same in every process.
        """
        self._adopt_in_order(sorted(variables, key=_creation))

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
                "several variables have the same name, and were numbered in their order: %s. A "
                "model that has only some of them, for prediction say, would load the wrong ones: "
                "give the layers or variables names of their own",
                numbered,
            )

    def has(self, variable: Any) -> bool:
        return any(known is variable for known in self.variables.values())

    def name_of(self, variable: Any) -> str:
        """The name under which the store knows this variable."""
        for name, known in self.variables.items():
            if known is variable:
                return name
        raise KeyError(f"the store does not know the variable {variable.name!r}")

    @property
    def is_making(self) -> bool:
        """Whether a variable is being made that has got its name already."""
        return self._making

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """While open, variables are made apart from the store, as if its scope were closed."""
        before, self._making = self._making, True
        try:
            yield
        finally:
            self._making = before

    def _getter(self, getter: Callable[..., Any], name: str, **options: Any) -> Any:
        """What `get_variable` calls: this store, or TensorFlow's own while it is set aside."""
        return getter(name, **options) if self._making else self._get(name, **options)

    def _get(
        self,
        name: str,
        shape: Any = None,
        dtype: Any = tf.float32,
        initializer: Any = None,
        regularizer: Callable[[Any], Any] | None = None,
        reuse: Any = None,
        trainable: bool | None = None,
        collections: Any = None,
        constraint: Any = None,
        synchronization: Any = tf.VariableSynchronization.AUTO,
        aggregation: Any = tf.VariableAggregation.NONE,
        **_: Any,
    ) -> Any:
        """Stands in for TensorFlow's own store, which lives in a graph and forgets it."""
        # In eager mode TensorFlow does not pass on what `reuse` was: sharing is then allowed.
        requested = self._visit().names
        if name in requested and not reuse and not tf.executing_eagerly():
            raise ValueError(
                f"the variable {name!r} is made twice in one tower; give the two layers different "
                "names, or share it on purpose with variable_scope(..., reuse=tf.AUTO_REUSE)"
            )
        if reuse is True and name not in self.variables:
            near = difflib.get_close_matches(name, self.variables, n=3)
            raise ValueError(
                f"reuse=True, but there is no variable {name!r}; the nearest are {near}"
            )
        requested.add(name)
        dtype = tf.as_dtype(dtype or tf.float32)
        if trainable is None:
            trainable = synchronization != tf.VariableSynchronization.ON_READ
        collections = collections or ()
        if v1.GraphKeys.LOCAL_VARIABLES in collections:
            trainable = False
        if name in self.variables:
            variable = self._checked(name, shape)
        else:
            variable = self.make(
                name,
                _initial_value(name, shape, dtype, initializer),
                trainable=trainable,
                local=v1.GraphKeys.LOCAL_VARIABLES in collections,
                constraint=constraint,
                synchronization=synchronization,
                aggregation=aggregation,
            )
        losses = self._visit().losses  # made in each trace anew: tensors of that graph
        if regularizer is not None and name not in losses:  # a shared variable counts once
            losses[name] = loss = regularizer(variable)
            v1.add_to_collection(v1.GraphKeys.REGULARIZATION_LOSSES, loss)
        return variable

    def _checked(self, name: str, shape: Any) -> Any:
        variable = self.variables[name]
        if shape is not None and not variable.shape.is_compatible_with(shape):
            raise ValueError(
                f"the variable {name!r} has shape {variable.shape}, but was asked for with shape "
                f"{tf.TensorShape(shape)}; two layers of one name, or another input size?"
            )
        return variable

    def _creator(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """A variable made by `tf.Variable`, a Keras layer or a module: named by its scopes."""
        if self._making:  # on its way through `make`, where it has got its name
            return next_creator(**kwargs)
        visit = self._visit()
        base = _scoped_name(kwargs.get("name") or "Variable", visit.prefix)
        visit.counts[base] += 1
        name = base if visit.counts[base] == 1 else f"{base}_{visit.counts[base] - 1}"
        if name in self.variables:
            return self.variables[name]
        if kwargs.get("trainable") is not False:
            self._check_not_late(name)
        # The name is complete: an open name scope would be put before it once more.
        initial = kwargs.get("initial_value")
        if tf.is_tensor(initial) and not hasattr(initial, "numpy"):
            kwargs["initial_value"] = lift(initial)
        with self.aside(), tf.init_scope(), v1.name_scope(None):
            variable = next_creator(**{**kwargs, **MADE_AT_ONCE, "name": name})
        self.variables[name] = variable
        return variable


def _creation(variable: Any) -> int:
    """A number that grows with each variable that the process makes.

    TensorFlow has no public one. A `tf.GradientTape` lists what it watches by this number.
    """
    return variable.handle._id


def _scoped_name(name: str, prefix: str) -> str:
    """The variable scope, the name scopes inside it (a Keras layer's), then the name."""
    scope = v1.get_variable_scope()
    inside = f"{tf.get_current_name_scope()}/".removeprefix(prefix)
    inside = inside.removeprefix((scope.original_name_scope or "").removeprefix(prefix))
    return "/".join(filter(None, [scope.name, inside.strip("/"), name]))


def _initial_value(name: str, shape: Any, dtype: Any, initializer: Any) -> Callable[[], Any]:
    if initializer is None:
        if dtype.is_floating or dtype.is_complex:
            initializer = v1.glorot_uniform_initializer()
        else:
            initializer = v1.zeros_initializer()
    if isinstance(initializer, type):
        initializer = initializer()
    if not callable(initializer):
        if tf.is_tensor(initializer):
            return lambda: lift(initializer)
        return lambda: tf.constant(initializer)  # TensorFlow too takes the dtype of the value
    if shape is None:
        raise ValueError(f"the variable {name!r} needs a shape, or a constant as its initializer")
    static_shape = tf.TensorShape(shape)
    if not static_shape.is_fully_defined():
        raise ValueError(
            f"the variable {name!r} needs a shape without unknown sizes, received {static_shape}; "
            "declare the input's size in its TensorSpec"
        )
    return lambda: initializer(static_shape.as_list(), dtype=dtype)

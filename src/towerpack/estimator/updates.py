"""The updates that a model function asks for, as an optimizer of the trainer.

A `train_op` is built inside of the model function: it would apply the gradients of one tower, with
slots that a new optimizer object makes in every trace. So `apply_gradients` of TensorFlow's
optimizers is recorded while a model function runs. The trainer then averages the gradients over
its towers and ranks, and `SpecOptimizer` applies them, with the slots of the first trace.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from towerpack._tensorflow import tf, v1
from towerpack.core.similar import nearest_first
from towerpack.estimator.spec import EstimatorSpec, is_optimizer
from towerpack.optimizer import Optimizer, as_optimizer
from towerpack.optimizer.base import GradsAndVars, constrain
from towerpack.tower import VariableStore
from towerpack.tower.creation import NOT_LIFTED

keras = tf.keras
_thread = threading.local()
_lock = threading.Lock()
_users = 0  # model functions that run now, in all threads
_original_compute: Any = v1.train.Optimizer.compute_gradients
_original_apply: Any = v1.train.Optimizer.apply_gradients


class Update(NamedTuple):
    """One call of `apply_gradients`; None as `pairs` stands for the gradients of the loss."""

    optimizer: Any
    pairs: Sequence[tuple[Any, Any]] | None


@contextlib.contextmanager
def recording(store: VariableStore) -> Iterator[list[Update]]:
    """While open, this thread's calls of TensorFlow's optimizers are recorded, not carried out."""
    global _users
    updates: list[Update] = []
    with _lock:
        _users += 1
        v1.train.Optimizer.compute_gradients = _compute_gradients
        v1.train.Optimizer.apply_gradients = _apply_gradients
    before, _thread.recorded = getattr(_thread, "recorded", None), (store, updates)
    try:
        yield updates
    finally:
        _thread.recorded = before
        with _lock:
            _users -= 1
            if not _users:
                v1.train.Optimizer.compute_gradients = _original_compute
                v1.train.Optimizer.apply_gradients = _original_apply


def _compute_gradients(
    self: Any, loss: Any, var_list: Any = None, *args: Any, **options: Any
) -> Any:
    """Without TensorFlow's own division by the number of replicas: towers are averaged."""
    if getattr(_thread, "recorded", None) is None:
        return _original_compute(self, loss, var_list, *args, **options)
    if tf.executing_eagerly():
        raise ValueError(
            "expected a traced step, received eager=True: minimize() of tf.compat.v1.train takes "
            "gradients of a graph. Give EstimatorSpec(optimizer=...) instead of train_op"
        )
    store, _ = _thread.recorded
    variables = list(store.trainable().values()) if var_list is None else list(var_list)
    if not variables:
        raise ValueError("the model has no trainable variable, so there is nothing to train")
    return list(zip(tf.gradients(loss, variables), variables, strict=True))


def _apply_gradients(
    self: Any, grads_and_vars: Any, global_step: Any = None, name: str | None = None, **options: Any
) -> Any:
    """The trainer itself counts the global step."""
    if getattr(_thread, "recorded", None) is None:
        return _original_apply(self, grads_and_vars, global_step, name, **options)
    _, updates = _thread.recorded
    updates.append(Update(self, list(grads_and_vars)))
    return tf.no_op(name=name or self.get_name())


class SpecOptimizer(Optimizer):
    """Applies the updates of the model function that was traced last, for one variable store.

    Optimizers of towerpack and Keras are those of the first trace. Those of `tf.compat.v1.train`
    are those of the current trace, whose learning rate may be a tensor of it; they get the slots
    that were made in the first trace.
    """

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self._given: list[Any] = []  # optimizers of towerpack and Keras, of the first trace
        self._kept: dict[str, Optimizer] = {}  # by the first part of the variables' names
        self._slots: list[tuple[str, Any]] = []  # names and variables, in the order of creation

    def follow(self, spec: EstimatorSpec, recorded: list[Update], store: VariableStore) -> None:
        """Takes the updates of a spec: those that were recorded, or its optimizers."""
        given = spec.optimizer
        if given is None and is_optimizer(spec.train_op):
            given = spec.train_op
        if given is None:
            self.updates = recorded
            if not recorded:
                raise ValueError(
                    "expected a train_op made by minimize() or apply_gradients() of an optimizer "
                    f"of tf.compat.v1.train, received {spec.train_op!r}. For any other optimizer "
                    "give EstimatorSpec(optimizer=...) instead; for a step of your own write a "
                    "trainer (docs/trainers.md)"
                )
            return
        if is_optimizer(given):
            self.updates = [Update(given, None)]
            return
        by_scope = given if isinstance(given, Mapping) else {"": given}
        if not self._kept:
            self._given = [made(each) for each in by_scope.values()]
            self._kept = dict(zip(by_scope, map(as_optimizer, self._given), strict=True))
        for each in by_scope.values():
            if isinstance(each, keras.optimizers.Optimizer) and each not in self._given:
                for variable in each.variables:  # of an object that is not used
                    store.leave_out(variable.value)

    def gradients(self) -> list[tuple[Any, Any]] | None:
        """The gradients that the model function has computed itself, each variable's once."""
        if not self.updates or self.updates[0].pairs is None:
            return None
        pairs = [pair for update in self.updates for pair in update.pairs or ()]
        references = [variable.ref() for _, variable in pairs]
        if len(set(references)) < len(references):
            raise ValueError(
                "expected each variable to be changed by one optimizer in a step, received several "
                "updates of one; pass var_list= to minimize()"
            )
        return pairs

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        for scope, optimizer in self._kept.items():
            own = [pair for pair in grads_and_vars if self._scope_of(pair[1]) == scope]
            if own:
                optimizer.apply_gradients(own)
        means = {variable.ref(): (mean, variable) for mean, variable in grads_and_vars}
        with _sharing(self._slots):
            for optimizer, pairs in self.updates:
                asked = means if pairs is None else [variable.ref() for _, variable in pairs]
                own = [means[reference] for reference in asked if reference in means]
                _original_apply(optimizer, own)
        if self.updates:
            # TensorFlow applies its own constraints but does not know those of Keras.
            constrain(v for _, v in grads_and_vars if v.constraint is None)

    def loss_scale(self, variables: Sequence[Any]) -> Any:
        if len(self._kept) == 1:
            (optimizer,) = self._kept.values()
            return optimizer.loss_scale(variables)
        return None

    def finalize(self) -> None:
        for optimizer in self._kept.values():
            optimizer.finalize()

    def take_in_variables(self, store: VariableStore) -> None:
        for optimizer in self._kept.values():
            optimizer.take_in_variables(store)
        for name, variable in self._slots:
            store.adopt(name, variable)

    def _scope_of(self, variable: Any) -> str:
        """The key of the optimizer of this variable."""
        if "" in self._kept:
            return ""
        name = VariableStore.current().name_of(variable)
        scope = name.split("/")[0]
        if scope not in self._kept:
            raise KeyError(
                f"no optimizer is for the variable {name!r}: expected the first part of its name "
                f"among the keys of optimizer=, {nearest_first(scope, self._kept)}"
            )
        return scope


@contextlib.contextmanager
def _sharing(made: list[tuple[str, Any]]) -> Iterator[None]:
    """While open, optimizers get the variables of `made` in their order, and then make new ones.

    The numbers that TensorFlow appends to names depend on how many optimizers came before.
    """
    requested = iter(list(made))

    def creator(next_creator: Callable[..., Any], **options: Any) -> Any:
        known = next(requested, None)
        if known is not None:
            return known[1]
        variable = next_creator(**{**options, **NOT_LIFTED})
        made.append((re.sub(r"_\d+$", "", variable.name.removesuffix(":0")), variable))
        return variable

    with contextlib.ExitStack() as stack:
        stack.enter_context(VariableStore.current().aside())
        with tf.init_scope():  # where TensorFlow creates slots
            stack.enter_context(tf.variable_creator_scope(creator))
        yield


def made(given: Any) -> Any:
    """The optimizer, or what a function without arguments returns, outside of the trace."""
    if not callable(given) or hasattr(given, "apply_gradients"):
        return given
    with tf.init_scope():
        return given()

"""A model function as a tower function, and the step that trains it."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.estimator.spec import EstimatorSpec, ModeKeys, checked
from towerpack.estimator.updates import SpecOptimizer, recording
from towerpack.keras.data import Form
from towerpack.tower import (
    TowerContext,
    VariableStore,
    get_current_tower_context,
    get_global_step_var,
)
from towerpack.train.builder import Objective, StepBuilder, checked_gradients

keras = tf.keras
LOSS, UPDATES = "loss", "metric_updates"
"""Names of tensors in the tower: the loss, and one that depends on all updates of metrics."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")
_READS = ("ReadVariableOp", "ResourceGather")
_LISTED = (v1.GraphKeys.TRAINABLE_VARIABLES, v1.GraphKeys.GLOBAL_VARIABLES)


def call_with(function: Callable[..., Any], *values: Any, **optional: Any) -> Any:
    """Calls a function of the user's with those of the optional arguments that it has."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return function(*values, **{k: v for k, v in optional.items() if takes_all or k in names})


class ModelTower:
    """A model function as a tower function of the flat tensors of a batch.

    In training its mode is TRAIN, otherwise `inference_mode`. After a trace, `spec` is what the
    model function returned, and `names` are the names of its tensors in the tower, by key:
    'predictions/<key>', 'metrics/<key>', 'exports/<signature>/<key>'.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        form: Form,
        inference_mode: str = ModeKeys.EVAL,
        **optional: Any,
    ):
        self._model_fn, self._form, self._optional = model_fn, form, optional
        self._inference_mode = inference_mode
        self.spec: EstimatorSpec | None = None
        self.names: dict[str, str] = {}
        self._optimizers: dict[VariableStore, SpecOptimizer] = {}

    @property
    def checked_spec(self) -> EstimatorSpec:
        """What the model function has returned in the latest trace."""
        if self.spec is None:
            raise RuntimeError("the model function has not been traced yet")
        return self.spec

    def names_of(self, group: str) -> dict[str, str]:
        """The names of the predictions, metrics or export outputs, by key."""
        prefix = f"{group}/"
        return {k.removeprefix(prefix): n for k, n in self.names.items() if k.startswith(prefix)}

    def make_optimizer(self) -> SpecOptimizer:
        """The optimizer of the store that is open."""
        return self._optimizers.setdefault(VariableStore.current(), SpecOptimizer())

    def __call__(self, *tensors: Any) -> Any:
        context = get_current_tower_context()
        if context is None:
            raise RuntimeError("a tower function must be called inside a TowerContext")
        mode = ModeKeys.TRAIN if context.is_training else self._inference_mode
        features, labels, _ = self._form.unpack(tensors)
        step = get_global_step_var()
        before = step.read_value()
        with recording(context.store) as updates, listed_variables(context.store, step) as metrics:
            optional = {"labels": labels, "mode": mode, **self._optional}
            try:
                found = call_with(self._model_fn, features, **optional)
            except Exception as error:
                if labels is None:
                    error.add_note(
                        f"labels is None in mode {mode!r}: for prediction, return "
                        "EstimatorSpec(mode, predictions=...) before the loss is computed"
                    )
                raise
            spec = checked(found, mode)
        step.assign(before)  # the trainer counts it, whether the train_op does or not
        metrics += metric_variables(spec)
        for variable in metrics:
            context.store.leave_out(variable)
        self.spec = spec
        if context.is_training:
            self._optimizers[context.store].follow(spec, updates, context.store)
        else:
            self._name_outputs(context, spec, metrics)
        return None if spec.loss is None else tf.identity(spec.loss, name=LOSS)

    def _name_outputs(self, context: TowerContext, spec: EstimatorSpec, metrics: list[Any]) -> None:
        """Names what evaluation, prediction and exports fetch."""
        named = {f"predictions/{key}": value for key, value in spec.named_predictions().items()}
        for key, metric in (spec.eval_metric_ops or {}).items():
            if isinstance(metric, tuple):
                named[f"metrics/{key}"] = metric[1]
            elif not isinstance(metric, keras.metrics.Metric):
                named[f"metrics/{key}"] = metric
            elif not updates_of([variable.value for variable in metric.variables]):
                raise ValueError(
                    f"the Keras metric {key!r} counts nothing: call its update_state(labels, "
                    "predictions) in the model function"
                )
        for signature, outputs in (spec.export_outputs or {}).items():
            outputs = outputs if isinstance(outputs, Mapping) else {"output": outputs}
            named |= {f"exports/{signature}/{key}": tensor for key, tensor in outputs.items()}
        self.names = {}
        for key, tensor in named.items():
            output = tf.identity(tensor, name=_NOT_IN_NAMES.sub("_", key))
            self.names[key] = context.without_prefix(output.op.name)
        with tf.control_dependencies(updates_of(metrics)):
            tf.constant(0, name=UPDATES)


class EstimatorStep(StepBuilder):
    """A step whose gradients may come from the model function."""

    def gradients(self, tape: Any, objective: Objective) -> list[tuple[Any, Any]]:
        optimizer = objective.optimizer
        given = optimizer.gradients() if isinstance(optimizer, SpecOptimizer) else None
        if given is None:
            return super().gradients(tape, objective)
        if self.trainer.loss_scale is not None:
            raise ValueError(
                "expected EstimatorSpec(optimizer=...) for a trainer that scales the loss "
                "(float16), received a train_op, whose gradients are not scaled"
            )
        return checked_gradients(*zip(*given, strict=True))


@contextlib.contextmanager
def listed_variables(store: VariableStore, step: Any) -> Iterator[list[Any]]:
    """While open, the graph's collections list the variables that the model function uses.

    `tf.compat.v1.trainable_variables()` and `get_global_step()` find them there. Yields the list of
    the variables of `tf.compat.v1.metrics`.
    """
    metrics: list[Any] = []

    def listed(variable: Any) -> Any:
        for key in _LISTED if variable.trainable else _LISTED[1:]:
            if not any(variable is known for known in v1.get_collection(key)):
                v1.add_to_collection(key, variable)
        return variable

    def getter(get: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return listed(get(*args, **options))

    def creator(create: Callable[..., Any], **options: Any) -> Any:
        variable = create(**options)
        if store.creating:
            return variable
        if v1.GraphKeys.METRIC_VARIABLES in (options.get("collections") or ()):
            metrics.append(variable)
            return variable
        return listed(variable)

    with contextlib.ExitStack() as stack:
        if not tf.executing_eagerly():
            for key in (*_LISTED, v1.GraphKeys.GLOBAL_STEP):
                stack.enter_context(emptied(v1.get_collection_ref(key)))
            v1.add_to_collection(v1.GraphKeys.GLOBAL_STEP, step)
            for variable in store.trainable().values():
                listed(variable)
            scope = v1.get_variable_scope()
            stack.enter_context(
                v1.variable_scope(scope, custom_getter=getter, auxiliary_name_scope=False)
            )
            stack.enter_context(tf.variable_creator_scope(creator))
        yield metrics


@contextlib.contextmanager
def emptied(collection: list[Any]) -> Iterator[None]:
    """While open, a list is empty at first: TensorFlow shares these lists between all graphs."""
    before = list(collection)
    collection.clear()
    try:
        yield
    finally:
        collection[:] = before


def metric_variables(spec: EstimatorSpec) -> list[Any]:
    """The variables of the Keras metrics of a spec."""
    metrics = (spec.eval_metric_ops or {}).values()
    kinds = [metric for metric in metrics if isinstance(metric, keras.metrics.Metric)]
    return [variable.value for metric in kinds for variable in metric.variables]


def updates_of(variables: Sequence[Any]) -> list[Any]:
    """The operations of the current graph that change these variables."""
    graph = v1.get_default_graph()
    captured = {id(outer): inner for outer, inner in graph.captures}
    handles = {id(captured[id(v.handle)]) for v in variables if id(v.handle) in captured}
    return [
        operation
        for operation in graph.get_operations()
        if operation.type not in _READS and any(id(x) in handles for x in operation.inputs)
    ]

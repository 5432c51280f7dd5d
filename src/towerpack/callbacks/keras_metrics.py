"""Any metric of Keras, in training and in validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.callbacks.base import Callback, RanksView
from towerpack.callbacks.inference import Inferencer
from towerpack.core import logger
from towerpack.core.codec import decode, encode
from towerpack.core.similar import nearest_first

_CHOSEN_BY_SHAPE = {"accuracy": "accuracy", "acc": "accuracy"} | dict.fromkeys(
    ["crossentropy", "ce"], "crossentropy"
)


class KerasMetric(Inferencer):
    """A metric of Keras over the whole set, logged as `validation_<name of the metric>`.

    `metric` is an object, a name that `compile(metrics=[...])` of Keras takes, or a function of
    (label, prediction). `prediction`, `label` and `sample_weight` are names of tensors. The result
    is that of one metric that received all batches: batches of any size count by their samples, on
    any number of devices and ranks. `name` is the whole name of the scalar. A result with several
    numbers is logged as `<name>_<key>`, or `<name>_0` and so on.

    >>> auc = KerasMetric("AUC", prediction="score", label="label")
    """

    def __init__(
        self,
        metric: Any,
        prediction: str = "prob",
        label: str = "label",
        name: str | None = None,
        sample_weight: str | None = None,
    ):
        check_metric(metric)
        self.metric, self.name = metric, name
        self.names = [label, prediction, *([sample_weight] if sample_weight else [])]
        self._made: Any = None

    def _get_fetches(self) -> list[str]:
        return self.names

    def _before_inference(self) -> None:
        if self._made is not None:
            self._made.reset_state()

    def _on_fetches(self, values: list[Any]) -> None:
        if self.batch_size == 0:
            return
        if self._made is None:
            self._made = make_metric(self.metric, *(np.shape(value) for value in values[:2]))
            self._made.reset_state()
        update(self._made, values)

    def _after_inference(self) -> dict[str, float]:
        if self._made is None:
            return {}
        name = self.name or f"validation_{default_name(self.metric, self._made)}"
        return named_results(name, self._made)


class TrainingMetric(Callback):
    """A metric of Keras over the samples of each epoch, logged as `training_<name of the metric>`.

    The arguments are those of `KerasMetric`. The metric is updated inside every step, in the graph,
    with the samples of all towers, each of which counts once; steps are still fused. It is logged
    and begins anew at each trigger. Its state is part of checkpoints, so a run that is resumed
    within an epoch logs what it would have logged.

    Several ranks add up their states at the trigger. A checkpoint has only the chief's, so after a
    resumption within an epoch the metric begins anew there, which is logged.

    >>> recall = TrainingMetric("Recall", prediction="score", label="label")
    """

    chief_only = False  # it adds to the step, which all ranks trace alike

    def __init__(
        self,
        metric: Any,
        prediction: str = "prob",
        label: str = "label",
        name: str | None = None,
        sample_weight: str | None = None,
    ):
        check_metric(metric)
        self.metric, self.name = metric, name
        self.names = [label, prediction, *([sample_weight] if sample_weight else [])]

    def _setup_graph(self) -> None:
        tensors = self.trainer.tower_func.towers.training()[0].get_tensors(self.names)
        store = self.trainer.store
        self._made = make_metric(self.metric, *(x.shape for x in tensors[:2]))
        # Some metrics make their variables only when they are first updated.
        with store.apart():
            specs = [tf.TensorSpec(x.shape, x.dtype) for x in tensors]
            function = tf.function(lambda *values: update(self._made, values), autograph=False)
            function.get_concrete_function(*specs)
        self._made.reset_state()
        if self.trainer.ranks.size > 1 and not are_sums(self._made.variables):
            raise ValueError(
                f"expected a metric whose state is a sum on several ranks, received {self._made}; "
                "use KerasMetric in an InferenceRunner, whose chief gets all predictions"
            )
        for variable in self._made.variables:  # checkpoints have them as the callback's state
            store.adopt(f"metrics/{variable.path}", variable.value, local=True)
        self._last: int | None = None
        self.trainer.add_to_step(self._update)

    def _update(self, gradients: Sequence[tuple[Any, Any]]) -> None:
        towers, graph = self.trainer.tower_func.towers.training(), v1.get_default_graph()
        here = [t for t in map(towers.__getitem__, range(len(towers))) if t.graph is graph]
        if len(here) < len(towers):
            raise ValueError(
                f"{self} needs towers that train in step, such as those of "
                "SyncMultiGPUTrainerReplicated; here each has a graph of its own"
            )
        columns = zip(*(tower.get_tensors(self.names) for tower in here), strict=True)
        values = [c[0] if len(c) == 1 else tf.concat(c, axis=0) for c in columns]
        with self.trainer.store.apart():
            update(self._made, values)

    def _trigger(self) -> None:
        ranks, step = self.trainer.ranks, self.global_step
        if step == self._last:
            return  # triggered twice: no samples since then
        self._last = step
        if ranks.size > 1:
            add_up(ranks, self._made.variables, self._made.reset_state, 0, str(self))
        if self.trainer.is_chief:
            name = self.name or f"training_{default_name(self.metric, self._made)}"
            for key, value in named_results(name, self._made).items():
                self.trainer.monitors.put_scalar(key, value)
        self._made.reset_state()

    def _state(self) -> list[Any]:
        return [np.asarray(variable).tolist() for variable in self._made.variables]

    def _restore(self, state: list[Any]) -> None:
        if self.trainer.ranks.size > 1:
            if state != self._state():
                logger.info("%s begins anew at the resumed step, on all ranks", self)
            return
        for variable, value in zip(self._made.variables, state, strict=True):
            variable.assign(value)


def check_metric(metric: Any) -> None:
    """Raises unless Keras knows this metric."""
    if isinstance(metric, str) and metric not in _CHOSEN_BY_SHAPE:
        try:
            tf.keras.metrics.get(metric)
        except ValueError:
            known = [name for name in dir(tf.keras.metrics) if not name.startswith("_")]
            raise ValueError(
                f"expected the name of a metric of Keras, received {metric!r}; the nearest are "
                f"{nearest_first(metric, [*known, *_CHOSEN_BY_SHAPE])}"
            ) from None
    elif not isinstance(metric, str) and not callable(metric):
        raise TypeError(
            "expected a metric of Keras, its name, or a function of (label, prediction), received "
            f"{metric!r}"
        )


def make_metric(metric: Any, label_shape: Any, prediction_shape: Any) -> Any:
    """The metric as an object; shapes decide what `'accuracy'` means, as in Keras."""
    if isinstance(metric, tf.keras.metrics.Metric):
        return metric
    if isinstance(metric, str) and metric in _CHOSEN_BY_SHAPE:
        kind = "categorical"
        if prediction_shape[-1:] == (1,) or len(prediction_shape) == 1:
            kind = "binary"
        elif len(label_shape) < len(prediction_shape) or label_shape[-1] == 1:
            kind = "sparse_categorical"
        metric = getattr(tf.keras.metrics, f"{kind}_{_CHOSEN_BY_SHAPE[metric]}")
    found = tf.keras.metrics.get(metric)
    if isinstance(found, tf.keras.metrics.Metric):
        return found
    return tf.keras.metrics.MeanMetricWrapper(found, name=getattr(found, "__name__", "metric"))


def default_name(metric: Any, made: Any) -> str:
    """The name of a metric as Keras logs it."""
    return metric if isinstance(metric, str) else str(made.name)


def update(metric: Any, values: Sequence[Any]) -> None:
    """Updates a metric with a batch of labels, predictions and perhaps weights.

    Keras takes means over the last axis, which must not be that of the samples: a vector becomes a
    column.
    """
    label, prediction, *weight = values
    if len(prediction.shape) == 1:
        prediction = prediction[:, None]
        label = label[:, None] if len(label.shape) == 1 else label
    metric.update_state(label, prediction, *weight)


def named_results(name: str, metric: Any) -> dict[str, float]:
    """The numbers of a metric under the names that they are logged with."""
    result = metric.result()
    if isinstance(result, dict):
        return {f"{name}_{key}": float(value) for key, value in result.items()}
    numbers = np.asarray(result)
    if numbers.ndim == 0:
        return {name: float(numbers)}
    return {f"{name}_{index}": float(value) for index, value in enumerate(numbers.ravel())}


def are_sums(variables: Sequence[Any]) -> bool:
    """Whether the states of metrics on several ranks can be added up."""
    return all(variable.aggregation == "sum" for variable in variables)


def add_up(
    ranks: RanksView, variables: Sequence[Any], reset: Callable[[], None], count: int, what: str
) -> list[int]:
    """Adds the states of metrics on all ranks, in place on the chief; returns the counts of all.

    `reset` sets the states to those of no datapoint. `count` is any number to tell the others.
    """
    own = [np.asarray(variable) for variable in variables]
    everyone = [decode(piece) for piece in ranks.gather(encode([count, own]), what)]
    reset()
    if ranks.is_chief:
        for number, variable in enumerate(variables):
            first = np.asarray(variable)
            states = [np.asarray(state[number], np.float64) for _, state in everyone]
            variable.assign((first + sum(state - first for state in states)).astype(first.dtype))
    return [found for found, _ in everyone]

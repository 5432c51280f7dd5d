"""Training with an evaluation at each checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from towerpack.callbacks import Callback
from towerpack.callbacks.interval import interval_of
from towerpack.core.cluster import is_chief
from towerpack.estimator.estimator import Estimator
from towerpack.estimator.evaluation import Evaluation
from towerpack.estimator.spec import ModeKeys


@dataclass(frozen=True)
class TrainSpec:
    """The data and the length of training; see `Estimator.train`."""

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None


@dataclass(frozen=True)
class EvalSpec:
    """The data of evaluations, of which each uses the first `steps` batches, or all with None.

    Args:
        name: of this data set, in the names of what is logged.
        start_delay_secs: the least time before the first evaluation during training.
        throttle_secs: the least time between two evaluations during training.
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600


class EvaluationCallback(Callback):
    """Evaluates the current weights at the interval of checkpoints, and logs the results.

    They are named `eval_<metric>`, or `eval_<name>_<metric>`. Only the chief of several ranks
    evaluates; the others wait for it.
    """

    has_interval = True

    def __init__(self, estimator: Estimator, spec: EvalSpec):
        self._estimator, self._spec = estimator, spec
        self._interval = interval_of(estimator.config.save_interval)
        self._evaluation: Evaluation | None = None

    def _before_train(self) -> None:
        self._interval.start(self.trainer)
        self._next = time.monotonic() + self._spec.start_delay_secs

    def _next_due(self) -> int | None:
        return self._interval.next_step(self.global_step + 1)

    def _trigger_step(self) -> None:
        if self._interval.triggers_after_step(self.trainer):
            self.trigger()

    def _trigger_epoch(self) -> None:
        if self._interval.triggers_after_epoch(self.trainer):
            self.trigger()

    def _trigger(self) -> None:
        if time.monotonic() < self._next:
            return
        weights = {name: value.numpy() for name, value in self.trainer.store.saved().items()}
        data = self._estimator.input_data(self._spec.input_fn, ModeKeys.EVAL)
        if self._evaluation is None:
            self._evaluation = self._estimator.evaluation(data.form)
        results = self._evaluation.run(weights, data.batches(self._spec.steps))
        prefix = f"eval_{self._spec.name}_" if self._spec.name else "eval_"
        for key, value in results.items():
            if key != "global_step" and isinstance(value, int | float):
                self.trainer.monitors.put_scalar(f"{prefix}{key}", value)
        self._next = time.monotonic() + self._spec.throttle_secs


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, Any] | None:
    """Trains up to `max_steps`, evaluates at each checkpoint and at the end; returns the last.

    On many machines, start the program with `towerpack launch` and use a `RunConfig` with
    `train_distribute=DistributedTrainerReplicated`. The chief evaluates; the other ranks return
    None.
    """
    evaluate = EvaluationCallback(estimator, eval_spec)
    estimator.train(
        train_spec.input_fn, [*(train_spec.hooks or ()), evaluate], max_steps=train_spec.max_steps
    )
    if not is_chief():
        return None
    return estimator.evaluate(eval_spec.input_fn, eval_spec.steps, name=eval_spec.name)

"""The metrics of a Keras model that trains on several ranks: of training, and of a validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback
from towerpack.callbacks.batches import batches_of
from towerpack.callbacks.divided import check_counts, share_of_rank
from towerpack.callbacks.keras_metrics import add_up, are_sums
from towerpack.core import logger
from towerpack.core.cluster import progress
from towerpack.keras.tower import KerasTower

VALIDATION = "validation_"


def shown(logs: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Keras' numbers under the names that they are logged with."""
    named = {"total_loss" if name == "loss" else name: value for name, value in logs.items()}
    return {f"{prefix}{name}": float(value) for name, value in named.items()}


class MetricsOfRanks(Callback):
    """At the end of an epoch, gives the chief the loss and metrics of all ranks.

    A callback that reads them earlier, or reads metrics whose states are not sums, gets those of
    the chief's batches.
    """

    chief_only = False

    def __init__(self, tower: KerasTower):
        self.tower = tower

    def _before_train(self) -> None:
        self._all = self.tower.metrics_variables()
        if not are_sums(self._all):
            logger.warning(
                "the loss and metrics of training are those of the chief's batches, 1/%d of all: "
                "the state of a metric is not a sum",
                self.trainer.ranks.size,
            )
            self._all = []

    def _before_epoch(self) -> None:
        if not self.trainer.is_chief:
            self.tower.reset_metrics()

    def _after_epoch(self) -> None:
        if self._all:
            reset = self.tower.reset_metrics
            add_up(self.trainer.ranks, self._all, reset, 0, "the metrics of training")


class KerasValidation(Callback):
    """Runs the model's `test_step` over a set; logs what `keras.Model.evaluate` would return.

    Several ranks share the batches, and the chief adds up the states of their metrics: every
    datapoint counts once. The chief alone evaluates if the set cannot be read by index, if the
    model has a `test_step` of its own, or if the state of a metric is not a sum.
    """

    chief_only = False

    def __init__(self, model: Any, data: Any, inputs: int):
        self.model, self.batches, self.inputs = model, batches_of(data), inputs

    def _setup_graph(self) -> None:
        signature = self.trainer.tower_func.signature
        self._test = tf.function(self._step, input_signature=list(signature), autograph=False)
        self._share = None
        if self.trainer.ranks.size > 1 and not self.chief_only:
            self._test.get_concrete_function()  # makes the variables of metrics
            sums = are_sums(self.model.metrics_variables)
            if sums and type(self.model).test_step is tf.keras.Model.test_step:
                self._share = share_of_rank(self, self.batches)
        self.batches.setup(signature, self._share)

    def _step(self, *tensors: Any) -> Any:
        x, y = tensors[: self.inputs], tensors[self.inputs :]
        return self.model.test_step(
            (x[0] if len(x) == 1 else list(x), y[0] if len(y) == 1 else list(y))
        )

    def _trigger(self) -> None:
        if self._share is None and not self.trainer.is_chief:
            return
        self.model.reset_metrics()
        logs: Mapping[str, Any] = {}
        done = 0
        with self.batches.one_pass() as batches:
            if self._share is not None:
                self.trainer.ranks.copy_from_chief({v.path: v.value for v in self.model.weights})
            for batch in batches:
                logs = self._test(*batch)
                done += 1
                progress.beat(self.global_step)
        if self._share is not None:
            logs = self._of_all_ranks(done)
        if not self.trainer.is_chief:
            return
        if not logs:
            raise ValueError(f"{self.batches.name} produced nothing in a whole pass; is it empty?")
        for name, value in shown(logs, VALIDATION).items():
            self.trainer.monitors.put_scalar(name, value)

    def _of_all_ranks(self, done: int) -> Mapping[str, Any]:
        """The results over the batches of all ranks, on the chief."""
        ranks, what = self.trainer.ranks, f"the validation of {self.batches.name}"
        variables = self.model.metrics_variables
        counts = add_up(ranks, variables, self.model.reset_metrics, done, what)
        check_counts(counts, what)
        if not ranks.is_chief or not any(counts):
            return {}
        return self.model.get_metrics_result()

    def _after_train(self) -> None:
        self.batches.close()

"""What Keras logs at the end of an epoch: the means of its losses and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback
from towerpack.callbacks.inference import batches_of

VALIDATION = "validation_"


def shown(logs: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Keras' numbers under the names that they are logged with."""
    named = {"total_loss" if name == "loss" else name: value for name, value in logs.items()}
    return {f"{prefix}{name}": float(value) for name, value in named.items()}


class KerasMetrics(Callback):
    """Logs `results()`, what Keras' metrics have gathered in the steps of an epoch."""

    def __init__(self, reset: Callable[[], None], results: Callable[[], Mapping[str, Any]]):
        self.reset, self.results = reset, results

    def _before_epoch(self) -> None:
        self.reset()

    def _trigger(self) -> None:
        for name, value in shown(self.results()).items():
            self.trainer.monitors.put_scalar(name, value)


class KerasValidation(Callback):
    """Runs the model's `test_step` over a set; logs what `keras.Model.evaluate` would return."""

    def __init__(self, model: Any, data: Any, inputs: int):
        self.model, self.batches, self.inputs = model, batches_of(data), inputs

    def _setup_graph(self) -> None:
        signature = self.trainer.tower_func.signature
        self.batches.setup(signature)
        self._test = tf.function(self._step, input_signature=list(signature), autograph=False)

    def _step(self, *tensors: Any) -> Any:
        x, y = tensors[: self.inputs], tensors[self.inputs :]
        return self.model.test_step(
            (x[0] if len(x) == 1 else list(x), y[0] if len(y) == 1 else list(y))
        )

    def _trigger(self) -> None:
        self.model.reset_metrics()
        logs: dict[str, Any] = {}
        with self.batches.one_pass() as batches:
            for batch in batches:
                logs = self._test(*batch)
        if not logs:
            raise ValueError(f"{self.batches.name} produced nothing in a whole pass; is it empty?")
        for name, value in shown(logs, VALIDATION).items():
            self.trainer.monitors.put_scalar(name, value)

    def _after_train(self) -> None:
        self.batches.close()

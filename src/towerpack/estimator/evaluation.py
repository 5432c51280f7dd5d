"""Evaluation of a model function: its loss and metrics over a whole data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.estimator.model import LOSS, UPDATES, ModelTower
from towerpack.keras.data import Form
from towerpack.predict import PredictConfig
from towerpack.predict.predictor import load_weights
from towerpack.tower import TowerFunc, TracedTower, VariableStore
from towerpack.tower.store import GLOBAL_STEP

keras = tf.keras


class Means:
    """Means over samples of tensors with a row for each, and of means over batches."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Any, int]] = {}

    def add(self, name: str, value: np.ndarray, size: int) -> None:
        """Adds a batch of `size` samples."""
        rows = np.asarray(value, np.float64)
        total, count = self._sums.get(name, (0.0, 0))
        if rows.ndim == 0:
            self._sums[name] = total + rows * size, count + size
        else:
            self._sums[name] = total + rows.sum(), count + rows.size

    def results(self) -> dict[str, float]:
        return {name: float(total / count) for name, (total, count) in self._sums.items()}


class Evaluation:
    """A model function traced for evaluation on batches of one form; may be run several times.

    Every sample counts once. The loss, and metrics that are scalar tensors, are means over batches
    weighted by their sizes; other tensors are averaged over their elements. Keras metrics and those
    of `tf.compat.v1.metrics` count by themselves, from zero in each run.
    """

    def __init__(self, model: ModelTower, form: Form):
        self._store = VariableStore()
        self._tower = TracedTower(TowerFunc(model, form.signature), self._store)
        self._metrics = dict(model.checked_spec.eval_metric_ops or {})
        names = model.names_of("metrics")
        self._keys = list(names)
        self._fetched = [LOSS, *names.values(), UPDATES]
        self._outputs = self._tower.function(None, self._fetched)
        local = set(self._store.variables) - set(self._store.saved())
        self._zeros = {name: self._store[name].numpy() for name in local}

    def run(self, weights: Any, batches: Iterator[list[Any]]) -> dict[str, Any]:
        """The loss, the metrics and `global_step` of these weights: a checkpoint or a dict."""
        function = self._tower.tower_func
        config = PredictConfig(
            tower_func=function, output_names=self._fetched, session_init=weights
        )
        load_weights(config, self._store, self._tower.prune(None, self._fetched))
        for name, value in self._zeros.items():
            self._store[name].assign(value)
        means, last = Means(), {}
        for batch in batches:
            loss, *values, _ = (tensor.numpy() for tensor in self._outputs(*batch))
            size = len(batch[0]) if np.ndim(batch[0]) else 1
            means.add(LOSS, loss, size)
            for key, value in zip(self._keys, values, strict=True):
                if isinstance(self._metrics[key], tuple):
                    last[key] = value  # of all batches so far
                else:
                    means.add(key, value, size)
        found: dict[str, Any] = means.results()
        if not found:
            raise ValueError("expected data to evaluate on, received an input_fn without batches")
        for key, metric in self._metrics.items():
            if isinstance(metric, keras.metrics.Metric):
                last[key] = np.asarray(metric.result())
        found |= {key: value.item() if value.ndim == 0 else value for key, value in last.items()}
        return {**dict(sorted(found.items())), GLOBAL_STEP: int(self._store[GLOBAL_STEP].numpy())}

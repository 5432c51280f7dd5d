"""Predictors that have their own copy of the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack.predict.config import PredictConfig
from towerpack.tower import TracedTower, VariableStore


class OfflinePredictor:
    """A function from arrays to arrays: `predictor(image)` gives the list of outputs.

    It builds the tower for inference, loads the weights, and keeps both; any batch size that the
    signature allows works. A variable of the tower that the checkpoint lacks is an error.
    """

    def __init__(self, config: PredictConfig):
        self.config, self.store = config, VariableStore()
        self._tower = TracedTower(config.tower_func, self.store)
        report = config.session_init.load(self.store.saved())
        if report.missing and report.loaded:
            raise ValueError(
                f"{report.source} lacks variables that the tower needs: {report.missing}; was it "
                "saved from another model?"
            )
        self.function = self._tower.function(config.input_names, config.output_names)

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        if len(inputs) != len(self.config.input_names):
            raise ValueError(
                f"expected {len(self.config.input_names)} inputs {self.config.input_names}, "
                f"received {len(inputs)}"
            )
        return [output.numpy() for output in self.function(*inputs)]

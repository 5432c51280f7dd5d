"""A predictor over a tower that is there already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.predict.base import PredictorBase, as_arrays
from towerpack.tower import TracedTower


class OnlinePredictor(PredictorBase):
    """Predicts with a traced tower, whose variables it shares: it sees every change to them.

    In training, `TracedTower(trainer.tower_func, trainer.store)` is such a tower; several
    predictors may be cut from one.
    """

    def __init__(
        self,
        tower: TracedTower,
        input_names: Sequence[str] | None,
        output_names: Sequence[str],
        return_input: bool = False,
    ):
        self.input_names = list(
            tower.tower_func.input_names if input_names is None else input_names
        )
        self.output_names, self.return_input = list(output_names), return_input
        self.function = tower.function(self.input_names, self.output_names)

    def _predict(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        return as_arrays(self.function(*inputs))

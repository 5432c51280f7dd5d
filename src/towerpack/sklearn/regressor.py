"""A regressor with the interface of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import column_or_1d, validate_data

from towerpack.sklearn.base import TowerEstimator
from towerpack.sklearn.network import IDENTITY


class TowerRegressor(RegressorMixin, TowerEstimator):
    """A neural network with the interface of `sklearn.neural_network.MLPRegressor`.

    It minimizes the squared error. A `y` with several columns is learned by one network with as
    many outputs. The parameters are those of `TowerClassifier`, apart from `class_weight`.

    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> model = TowerRegressor((16,), learning_rate_init=0.05, random_state=0, tol=1e-5)
    >>> bool(model.fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.9)
    True
    """

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> TowerRegressor:
        """Trains for one epoch, from the weights and the optimizer's state of the last call."""
        self._fit(X, y, sample_weight, incremental=True)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The values of each row, in columns if there are several."""
        values = self._logits(X)
        return values.ravel() if values.shape[1] == 1 else values

    def _checked(
        self, X: Any, y: Any, reset: bool, classes: Any = None
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        X, y = validate_data(
            self, X, y,
            accept_sparse="csr", multi_output=True, y_numeric=True, dtype=self._dtypes, reset=reset,
        )  # fmt: skip
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        targets = y.reshape(len(y), -1).astype(X.dtype)
        if not reset and targets.shape[1] != self.n_outputs_:
            raise ValueError(
                f"expected y with {self.n_outputs_} columns, as in the first call; received "
                f"{targets.shape[1]}"
            )
        self.out_activation_, self.n_outputs_ = IDENTITY, targets.shape[1]
        return X, targets, np.ones(len(y))

    def _score_of(self, logits: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
        if not np.isfinite(logits).all():
            return float("nan")
        return float(r2_score(targets, logits, sample_weight=weights))

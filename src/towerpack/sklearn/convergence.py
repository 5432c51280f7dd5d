"""What happens after each epoch of a fit: its record, and whether training ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from towerpack.callbacks import StopTraining
from towerpack.core import logger
from towerpack.sklearn.training import Training

SLOWER = 0.2  # by which the learning rate is multiplied if it is 'adaptive'
SLOWEST = 1e-6  # a learning rate of at most that ends training


def begin_record(estimator: Any) -> None:
    """Forgets the epochs of earlier fits."""
    e = estimator
    e.loss_curve_, e.t_, e._no_improvement = [], 0, 0
    e.validation_scores_ = [] if e.early_stopping else None
    e.best_validation_score_ = -np.inf if e.early_stopping else None
    e.best_loss_ = None if e.early_stopping else np.inf


class Convergence:
    """Records each epoch in the attributes of `MLPClassifier`, and ends training by its rules.

    Without early stopping, training ends if the loss does not decrease by `tol` in more than
    `n_iter_no_change` epochs; with it, if the `score` does not increase. `best` then has the
    weights of the best score.
    """

    def __init__(self, estimator: Any, rows: int, score: Callable[[], float] | None):
        self._estimator, self._rows, self._score = estimator, rows, score
        self.best: dict[str, np.ndarray] | None = None
        self.ran_out = False  # of epochs, before training would have ended by itself
        estimator.n_iter_ = 0

    def __call__(self, training: Training) -> None:
        e = self._estimator
        e.n_iter_ += 1
        e.t_ += self._rows
        e.loss_ = training.take_loss()
        e.loss_curve_.append(e.loss_)
        if e.verbose:
            logger.info("epoch %d: the loss is %.8f", e.n_iter_, e.loss_)
        improved = self._by_loss() if self._score is None else self._by_score(training)
        e._no_improvement = 0 if improved else e._no_improvement + 1
        if e._no_improvement > e.n_iter_no_change:
            self._slow_down_or_stop(training)
        self.ran_out = e.n_iter_ == e.max_iter

    def _by_loss(self) -> bool:
        e = self._estimator
        improved = not e.loss_ > e.best_loss_ - e.tol
        e.best_loss_ = min(e.best_loss_, e.loss_)
        return improved

    def _by_score(self, training: Training) -> bool:
        e, score = self._estimator, self._score()  # type: ignore[misc]
        e.validation_scores_.append(score)
        if e.verbose:
            logger.info("epoch %d: the validation score is %.6f", e.n_iter_, score)
        improved = not score < e.best_validation_score_ + e.tol
        if score > e.best_validation_score_:
            e.best_validation_score_, self.best = score, training.weights()
        return improved

    def _slow_down_or_stop(self, training: Training) -> None:
        e = self._estimator
        adapts = e.learning_rate == "adaptive" and e.solver == "sgd"
        if adapts and training.slow_down(SLOWER, SLOWEST):
            e._no_improvement = 0
            return
        what = "loss" if self._score is None else "validation score"
        raise StopTraining(f"the {what} has not improved for {e.n_iter_no_change} epochs")

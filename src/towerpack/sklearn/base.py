"""What the classifier and the regressor have in common: parameters, training, weights."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from towerpack.optimizer.base import LEARNING_RATE
from towerpack.sklearn.convergence import Convergence, begin_record
from towerpack.sklearn.epochs import Epochs, Rows
from towerpack.sklearn.network import ALPHA, LOSS_SUM, Form, Network, names
from towerpack.sklearn.parameters import check_parameters, hidden_sizes
from towerpack.sklearn.saving import load, save
from towerpack.sklearn.training import Training, checked_trainer, quiet, training_for

MOST_ROWS = 200  # of a batch, if batch_size is 'auto'
FACTOR, FACTOR_LOGISTIC = 6.0, 2.0  # of the variance of initial weights


class TowerEstimator(BaseEstimator):
    """The base class of `TowerClassifier`, which describes the parameters, and `TowerRegressor`."""

    def __init__(
        self,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        solver: Any = "adam",
        alpha: float = 0.0001,
        batch_size: int | str = "auto",
        learning_rate: str = "constant",
        learning_rate_init: float = 0.001,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: bool = False,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: float = 10,
        tower_func: Callable[[Any, int], Any] | None = None,
        trainer: Callable[[], Any] | None = None,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tower_func = tower_func
        self.trainer = trainer

    n_outputs_: int
    out_activation_: str
    weights_: dict[str, np.ndarray]
    _optimizer: dict[str, np.ndarray]
    _predictor: Callable[[Any], np.ndarray] | None

    # What a subclass defines

    def _checked(self, X: Any, y: Any, reset: bool, classes: Any = None) -> tuple[Any, Any, Any]:
        """X as an array or CSR matrix, the targets of the network, and the factor of each row.

        Sets `n_features_in_`, `n_outputs_` and `out_activation_`.
        """
        raise NotImplementedError

    def _strata(self, targets: np.ndarray) -> np.ndarray | None:
        """By what the validation rows are stratified."""
        return None

    def _resampled(self, rows: Rows, rng: np.random.RandomState) -> Rows:
        """The rows to train on, of those that are not held out."""
        return rows

    def _score_of(self, logits: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
        """How good logits are, for early stopping."""
        raise NotImplementedError

    # Training

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TowerEstimator:
        """Trains until the loss, or the score of the validation rows, does not improve any more.

        `X` is an array or a sparse matrix. With `warm_start`, training begins with the weights of
        the last fit.
        """
        return self._fit(X, y, sample_weight, incremental=False)

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, incremental: bool, classes: Any = None
    ) -> TowerEstimator:
        check_parameters(self)
        if incremental and self.early_stopping:
            raise ValueError("partial_fit is one epoch and does not support early_stopping=True")
        first = not hasattr(self, "weights_") or not (self.warm_start or incremental)
        X, targets, factors = self._checked(X, y, reset=first, classes=classes)
        weights = row_weights(sample_weight, X) * factors.astype(X.dtype)
        if not weights.any():
            raise ValueError("expected a row with a weight above 0; the weight of each row is zero")
        rng = check_random_state(self.random_state)
        form = self._form(X.dtype)
        start = initial_weights(form, rng) if first else dict(self.weights_)
        if incremental and not first:
            start |= self._optimizer
        if first or self.early_stopping == (self.validation_scores_ is None):
            begin_record(self)
        seed = 0 if form.tower_func is None else int(rng.randint(2**31 - 1))
        rows, held_out = Rows(X, targets, weights), None
        if self.early_stopping:
            kept, others = self._split(targets, rng)
            rows, held_out = rows.at(kept), rows.at(others)
        rows = self._resampled(rows, rng)
        trainer = checked_trainer(self.trainer)
        source = Epochs(
            rows,
            batch_size=self._batch_size(len(rows.y)),
            towers=1 if trainer is None else trainer.batches_per_step,
            rng=rng if self.shuffle else None,
        )
        rate, epochs = self.learning_rate_init, 1 if incremental else self.max_iter
        with (
            contextlib.nullcontext() if self.verbose else quiet(),
            training_for(form, self.solver, rate, source, epochs, trainer, seed) as training,
        ):
            score = self._score(training, held_out) if held_out else None
            convergence = Convergence(self, len(rows.y), score)
            values = {ALPHA: self.alpha, LEARNING_RATE: rate, **start}
            training.train(source, values, epochs, convergence)
            self._keep(training, convergence.best)
        if convergence.ran_out and not incremental:
            warnings.warn(
                f"training ended after max_iter={epochs} epochs and has not converged yet",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    def _score(self, training: Training, rows: Rows) -> Callable[[], float]:
        """A function that computes the score of rows with the weights that are being trained."""
        predict = training.predictor()
        return lambda: self._score_of(predict(rows.x), rows.y, rows.weights)

    def _keep(self, training: Training, best: dict[str, np.ndarray] | None) -> None:
        """Takes over what was learned: the best weights, or the last ones without `best`."""
        others, weights = training.values(), training.weights()
        left_out = {ALPHA, LOSS_SUM, *weights}
        if self.early_stopping and best is None:  # an earlier fit had a better score
            best = getattr(self, "weights_", None)
        self.weights_ = best or weights
        self._optimizer = {name: v for name, v in others.items() if name not in left_out}
        self._predictor = None

    def _split(self, targets: np.ndarray, rng: np.random.RandomState) -> Any:
        """The rows to train on, and those for validation, divided as `MLPClassifier` does."""
        rows, others = train_test_split(
            np.arange(len(targets)),
            random_state=rng,
            test_size=self.validation_fraction,
            stratify=self._strata(targets),
        )
        if len(others) < 2:
            raise ValueError(
                f"expected at least 2 rows for validation, received {len(others)} of "
                f"{len(targets)}: increase validation_fraction, or pass more data"
            )
        return rows, others

    def _batch_size(self, rows: int) -> int:
        if isinstance(self.batch_size, str):  # 'auto'
            return min(MOST_ROWS, rows)
        if self.batch_size > rows:
            warnings.warn(
                f"expected a batch_size of at most the number of rows, which is {rows}; received "
                f"{self.batch_size}, so each batch has all rows",
                stacklevel=4,
            )
        return int(min(self.batch_size, rows))

    # The network

    def _form(self, dtype: Any) -> Form:
        hidden = () if self.tower_func is not None else hidden_sizes(self.hidden_layer_sizes)
        return Form(
            features=self.n_features_in_,
            outputs=self.n_outputs_,
            output=self.out_activation_,
            dtype=np.dtype(dtype).name,
            hidden=tuple(map(int, hidden)),
            activation=self.activation,
            tower_func=self.tower_func,
        )

    @property
    def _dtypes(self) -> Any:
        """In what the network computes: the first of them, or as the data if it is another."""
        return np.float32 if self.tower_func is not None else (np.float64, np.float32)

    def _logits(self, X: Any) -> np.ndarray:
        """What the last layer computes for each row."""
        check_is_fitted(self, "weights_")
        dtype = np.float32 if self.tower_func is not None else self.weights_[names(0)[0]].dtype
        X = validate_data(self, X, accept_sparse="csr", dtype=dtype, reset=False)
        predictor = self._predictor
        if predictor is None:
            with quiet():
                predictor = Network(self._form(dtype)).predictor(self.weights_)
            if self.tower_func is not None:  # which was traced
                self._predictor = predictor
        return predictor(X)

    @property
    def coefs_(self) -> list[np.ndarray]:
        """The matrices of the layers, as in `MLPClassifier`; not with a `tower_func`."""
        return self._layers(0)

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """The intercepts of the layers, as in `MLPClassifier`; not with a `tower_func`."""
        return self._layers(1)

    def _layers(self, part: int) -> list[np.ndarray]:
        if self.tower_func is not None or not hasattr(self, "weights_"):
            raise AttributeError("only a fitted network of hidden layers has this: see weights_")
        count = len(self.weights_) // 2
        return [self.weights_[names(layer)[part]] for layer in range(count)]

    def save(self, path: str | Path) -> None:
        """Writes the fitted estimator to a file, without pickle: `load` runs no code of it."""
        check_is_fitted(self, "weights_")
        save(self, path)

    @classmethod
    def load(cls, path: str | Path, **functions: Any) -> Any:
        """The estimator that `save` has written.

        Parameters that were functions are passed again: `TowerClassifier.load(path, tower_func=f)`.
        """
        return load(cls, path, functions)

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, numpy arrays and plain values: nothing of TensorFlow."""
        state = super().__getstate__()
        return {**state, "_predictor": None} if "_predictor" in state else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def row_weights(sample_weight: Any, X: Any) -> np.ndarray:
    """The weight of each row, which is 1 without `sample_weight`."""
    if sample_weight is None:
        return np.ones(X.shape[0], X.dtype)
    weights = check_array(
        sample_weight, ensure_2d=False, dtype=X.dtype, input_name="sample_weight", copy=True
    )
    if weights.shape != (X.shape[0],):
        raise ValueError(
            f"expected sample_weight to be a vector with a number for each of the {X.shape[0]} "
            f"rows; received an array of shape {weights.shape}"
        )
    check_non_negative(weights, "sample_weight")
    return weights


def initial_weights(form: Form, rng: np.random.RandomState) -> dict[str, np.ndarray]:
    """Weights of hidden layers as `MLPClassifier` draws them; empty with a tower function."""
    if form.tower_func is not None:
        return {}
    weights, factor = {}, FACTOR_LOGISTIC if form.activation == "logistic" else FACTOR
    for layer, shape in enumerate(form.layers):
        bound = np.sqrt(factor / sum(shape))
        for name, size in zip(names(layer), (shape, shape[1:]), strict=True):
            weights[name] = rng.uniform(-bound, bound, size).astype(form.dtype)
    return weights

"""A classifier with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import (
    check_classification_targets,
    is_multilabel,
    unique_labels,
)
from sklearn.utils.validation import column_or_1d, validate_data

from towerpack.dataflow.classes import RESAMPLE
from towerpack.sklearn.base import TowerEstimator
from towerpack.sklearn.epochs import Rows
from towerpack.sklearn.network import LOGISTIC, SOFTMAX


class TowerClassifier(ClassifierMixin, TowerEstimator):
    """A neural network that classifies, with the interface of scikit-learn's `MLPClassifier`.

    Parameters have the names and defaults that they have there. With hidden layers and the same
    `random_state`, it learns the same weights, up to rounding. It computes in the dtype of `X`:
    float64, or float32, which is about twice as fast. A `y` with a column of 0 and 1 for each label
    makes it a multi-label classifier.

    Weights and all else that a fitted estimator holds are numpy arrays and plain values, so
    `pickle`, `copy.deepcopy` and `joblib` work. Fits may run in several threads or processes.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TowerClassifier((16,), learning_rate_init=0.01, tol=0.001, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.95)
    True

    Args:
        hidden_layer_sizes: the number of units in each hidden layer.
        activation: of the hidden layers: 'relu', 'tanh', 'logistic' or 'identity'.
        solver: 'adam', 'sgd' (with Nesterov's momentum of 0.9), or a function from the learning
            rate to an optimizer of towerpack or Keras: `towerpack.optimizer.AdamW`, say.
        alpha: the strength of L2 regularization, on all matrices.
        batch_size: the rows of a batch; 'auto' is 200, or all rows if they are fewer. A trainer
            with several towers divides each batch.
        learning_rate: 'constant', or 'adaptive' for 'sgd': divided by 5 where training would end.
        max_iter: the most epochs that a fit may take.
        shuffle: whether each epoch has another order of rows.
        random_state: an integer makes a fit repeatable, bit for bit on one machine.
        tol: the least improvement that counts.
        verbose: whether to log each epoch.
        early_stopping: whether to hold out `validation_fraction` of the rows, to stop when their
            score does not improve, and to keep the weights of the best score.
        n_iter_no_change: training ends after more than that many epochs without improvement.
        class_weight: None, 'balanced', the weight of each class as `{class: weight}`, or 'resample'
            to repeat the rows of rare classes until each class has as many as the largest.
        tower_func: a function `(x, outputs)` that returns logits with `outputs` columns, in place
            of hidden layers: written with towerpack's layers, Keras or TensorFlow. It gets `x` as
            float32.
        trainer: a function that returns a new trainer, such as `SimpleTrainer`, or
            `lambda: SyncMultiGPUTrainer(2)`.
    """

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
        class_weight: Any = None,
        tower_func: Callable[[Any, int], Any] | None = None,
        trainer: Callable[[], Any] | None = None,
    ):
        super().__init__(
            hidden_layer_sizes,
            activation,
            solver=solver,
            alpha=alpha,
            batch_size=batch_size,
            learning_rate=learning_rate,
            learning_rate_init=learning_rate_init,
            max_iter=max_iter,
            shuffle=shuffle,
            random_state=random_state,
            tol=tol,
            verbose=verbose,
            warm_start=warm_start,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tower_func=tower_func,
            trainer=trainer,
        )
        self.class_weight = class_weight

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None
    ) -> TowerClassifier:
        """Trains for one epoch, from the weights and the optimizer's state of the last call.

        The first call needs `classes`, all that may occur, unless `y` has a column for each label.
        """
        fitted = hasattr(self, "classes_")
        if not fitted and classes is None and np.ndim(y) == 1:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all rows, but partial_fit has only "
                "some: pass sample_weight, or a dict with the weight of each class"
            )
        if classes is not None:
            classes = unique_labels(classes)
            if fitted and not np.array_equal(classes, self.classes_):
                raise ValueError(
                    f"expected the classes of the first call, {self.classes_}; received {classes}"
                )
        self._fit(X, y, sample_weight, incremental=True, classes=classes)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row; 0 or 1 for each label if there are several."""
        return self._classes_of(self._logits(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, in the order of `classes_`."""
        logits = self._logits(X)
        if self.out_activation_ == SOFTMAX:
            return softmax(logits, axis=1)
        likely = expit(logits)
        if self._labels:
            return likely
        return np.hstack([1 - likely, likely]) if len(self.classes_) == 2 else np.ones_like(likely)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of the probability of each class, exact for improbable ones too."""
        logits = self._logits(X)
        if self.out_activation_ == SOFTMAX:
            return log_softmax(logits, axis=1)
        likely = log_expit(logits)
        if self._labels:
            return likely
        both = np.hstack([log_expit(-logits), likely])
        return both if len(self.classes_) == 2 else np.zeros_like(likely)

    def _checked(
        self, X: Any, y: Any, reset: bool, classes: Any = None
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        X, y = validate_data(
            self, X, y, accept_sparse="csr", multi_output=True, dtype=self._dtypes, reset=reset
        )
        y = y.toarray() if hasattr(y, "toarray") else y
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if y.ndim == 2 and not is_multilabel(y):
            raise ValueError(
                "Multioutput target data is not supported: expected a class for each row, or 0 and "
                f"1 for each label; received y of shape {y.shape}"
            )
        found = unique_labels(y)
        if reset:
            self.classes_, self._labels = found if classes is None else classes, y.ndim == 2
        unknown = np.setdiff1d(found, self.classes_)
        if len(unknown) or (y.ndim == 2) != self._labels:
            raise ValueError(
                f"`y` has classes not in `self.classes_`: expected {self.classes_}, received "
                f"{found}"
            )
        several = not self._labels and len(self.classes_) > 2
        self.out_activation_ = SOFTMAX if several else LOGISTIC
        self.n_outputs_ = len(self.classes_) if self._labels or several else 1
        factors = np.ones(len(y))
        if self.class_weight not in (None, RESAMPLE):
            factors = compute_sample_weight(self.class_weight, y)
        if self._labels:
            return X, y.astype(X.dtype), factors
        number = np.searchsorted(self.classes_, y).astype(np.int32)
        return X, number if several else number.astype(X.dtype)[:, None], factors

    def _classes_of(self, logits: np.ndarray) -> np.ndarray:
        if self.out_activation_ == SOFTMAX:
            return self.classes_[logits.argmax(axis=1)]
        positive = (logits > 0).astype(int)
        if self._labels:
            return positive
        return self.classes_[np.minimum(positive[:, 0], len(self.classes_) - 1)]

    def _strata(self, targets: np.ndarray) -> np.ndarray | None:
        return targets if self.n_outputs_ == 1 else None

    def _resampled(self, rows: Rows, rng: np.random.RandomState) -> Rows:
        if self.class_weight != RESAMPLE:
            return rows
        if self._labels:
            raise ValueError(
                "expected a class for each row with class_weight='resample', received several "
                "labels: pass sample_weight instead"
            )
        _, number = np.unique(rows.y, return_inverse=True)
        classes = [np.flatnonzero(number.ravel() == each) for each in range(number.max() + 1)]
        most = max(map(len, classes))
        chosen = [np.resize(rng.permutation(members), most) for members in classes]
        return rows.at(np.sort(np.concatenate(chosen)))

    def _score_of(self, logits: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
        found = logits.argmax(axis=1) if self.out_activation_ == SOFTMAX else logits > 0
        return float(accuracy_score(targets, found, sample_weight=weights))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

"""What is computed over a validation set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.callbacks.base import TrainerView
from towerpack.core import logger
from towerpack.tower import get_op_tensor_name


class Inferencer:
    """Takes in the values of some tensors over all batches of a set, and ends in scalars.

    Override `_get_fetches` (names of tensors), `_before_inference`, `_on_fetches` (the values of
    one batch, in the order of the names; each batch comes exactly once, in the order of the set)
    and `_after_inference` (the scalars to put to the monitors). `trainer` is there from
    `_before_inference` on, for pictures say. In `_on_fetches`, `batch_size` is the number of
    samples in the batch: weight means of a batch by it, since the last batch may be smaller. It is
    None where the inputs disagree about their first dimension.
    """

    trainer: TrainerView
    batch_size: int | None = None

    def get_fetches(self) -> list[str]:
        """Names of the tensors it wants."""
        return list(self._get_fetches())

    def before_inference(self) -> None:
        """A new pass begins."""
        self._before_inference()

    def on_fetches(self, values: list[Any]) -> None:
        """The values of one batch, in the order of `get_fetches`."""
        self._on_fetches(values)

    def after_inference(self) -> dict[str, float]:
        """The scalars to log."""
        return dict(self._after_inference() or {})

    def _get_fetches(self) -> Sequence[str]:
        raise NotImplementedError(f"{type(self).__name__} must define _get_fetches()")

    def _before_inference(self) -> None: ...

    def _on_fetches(self, values: list[Any]) -> None: ...

    def _after_inference(self) -> dict[str, float] | None: ...


class ScalarStats(Inferencer):
    """The mean of scalar tensors over a set, logged as `<prefix>_<name>`.

    Each batch counts by its number of samples, so that the mean of a batch (a cost, an accuracy)
    becomes the mean over all samples, also when the last batch is smaller. Where the size of a
    batch is not known, because inputs differ in their first dimension, each batch counts once, and
    a warning is logged. For another weight, such as the number of words, write an `Inferencer`.

    >>> stats = ScalarStats(["cost", "accuracy"])
    """

    def __init__(self, names: str | Sequence[str], prefix: str = "validation"):
        self.names = [names] if isinstance(names, str) else list(names)
        self.prefix = prefix
        self._warned = False

    def _get_fetches(self) -> list[str]:
        return self.names

    def _before_inference(self) -> None:
        self._values: list[list[float]] = []
        self._sizes: list[int | None] = []

    def _on_fetches(self, values: list[Any]) -> None:
        for name, value in zip(self.names, values, strict=True):
            if np.ndim(value):
                raise ValueError(
                    f"ScalarStats takes scalars, but {name!r} has shape {np.shape(value)}"
                )
        if self.batch_size == 0:  # the mean of no samples is NaN
            return
        self._values.append([float(value) for value in values])
        self._sizes.append(self.batch_size)

    def _after_inference(self) -> dict[str, float]:
        means = np.average(self._values, axis=0, weights=self._weights())
        ops = [get_op_tensor_name(name)[0] for name in self.names]
        return {
            f"{self.prefix}_{op}" if self.prefix else op: float(mean)
            for op, mean in zip(ops, means, strict=True)
        }

    def _weights(self) -> list[int] | None:
        known = [size for size in self._sizes if size is not None]
        if len(known) == len(self._sizes):
            return known
        if not self._warned:
            self._warned = True
            logger.warning(
                "ScalarStats counts every batch of %s once: the inputs differ in their first "
                "dimension, so the number of samples in a batch is not known",
                self.names,
            )
        return None


class ClassificationError(Inferencer):
    """The share of wrong samples in the whole set, exact for batches of any sizes.

    `wrong_tensor` is a vector with 1 (or True) for each wrong sample of a batch. It is summed in
    float64, whatever its type.
    """

    def __init__(
        self, wrong_tensor: str = "incorrect_vector", summary_name: str = "validation_error"
    ):
        self.wrong_tensor, self.summary_name = wrong_tensor, summary_name

    def _get_fetches(self) -> list[str]:
        return [self.wrong_tensor]

    def _before_inference(self) -> None:
        self._wrong, self._total = 0.0, 0

    def _on_fetches(self, values: list[Any]) -> None:
        (vector,) = values
        if np.ndim(vector) != 1:
            raise ValueError(
                f"expected {self.wrong_tensor!r} to be a vector with one value per sample, "
                f"received shape {np.shape(vector)}"
            )
        self._wrong += float(np.sum(np.asarray(vector, np.float64)))
        self._total += len(vector)

    def _after_inference(self) -> dict[str, float]:
        return {self.summary_name: self._wrong / self._total if self._total else math.nan}


class BinaryClassificationStats(Inferencer):
    """Precision and recall of a binary decision over the whole set.

    `pred_tensor_name` and `label_tensor_name` are vectors of 0 and 1. Logged as
    `<prefix>_precision` and `<prefix>_recall`; 0 where there is nothing to divide by.

    >>> stats = BinaryClassificationStats("decision", "label")
    """

    def __init__(self, pred_tensor_name: str, label_tensor_name: str, prefix: str = "val"):
        self.names, self.prefix = [pred_tensor_name, label_tensor_name], prefix

    def _get_fetches(self) -> list[str]:
        return self.names

    def _before_inference(self) -> None:
        self._hits = self._predicted = self._real = 0

    def _on_fetches(self, values: list[Any]) -> None:
        prediction, label = (np.asarray(value) for value in values)
        for name, array in zip(self.names, (prediction, label), strict=True):
            if not np.isin(array, (0, 1)).all():
                raise ValueError(f"expected 0 and 1 in {name!r}, received {np.unique(array)[:5]}")
        if prediction.shape != label.shape:
            raise ValueError(
                f"expected {self.names} to have one shape, received {prediction.shape} and "
                f"{label.shape}"
            )
        self._hits += int(np.sum((prediction == 1) & (label == 1)))
        self._predicted += int(np.sum(prediction == 1))
        self._real += int(np.sum(label == 1))

    def _after_inference(self) -> dict[str, float]:
        return {
            f"{self.prefix}_precision": self._hits / self._predicted if self._predicted else 0.0,
            f"{self.prefix}_recall": self._hits / self._real if self._real else 0.0,
        }

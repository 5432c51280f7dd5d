"""What is computed over a validation set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.tower import get_op_tensor_name


class Inferencer:
    """Takes in the values of some tensors over all batches of a set, and ends in scalars."""

    def get_fetches(self) -> list[str]:
        """Names of the tensors it wants."""
        raise NotImplementedError

    def before_inference(self) -> None:
        """A new pass begins."""

    def on_fetches(self, values: list[Any]) -> None:
        """The values of one batch, in the order of `get_fetches`."""

    def after_inference(self) -> dict[str, float]:
        """The scalars to log."""
        return {}


class ScalarStats(Inferencer):
    """The plain mean over batches of scalar tensors, logged as `<prefix>_<name>`."""

    def __init__(self, names: str | Sequence[str], prefix: str = "validation"):
        self.names = [names] if isinstance(names, str) else list(names)
        self.prefix = prefix

    def get_fetches(self) -> list[str]:
        return self.names

    def before_inference(self) -> None:
        self._values: list[list[float]] = []

    def on_fetches(self, values: list[Any]) -> None:
        for name, value in zip(self.names, values, strict=True):
            if np.ndim(value):
                raise ValueError(
                    f"ScalarStats takes scalars, but {name!r} has shape {np.shape(value)}"
                )
        self._values.append([float(value) for value in values])

    def after_inference(self) -> dict[str, float]:
        means = np.mean(self._values, axis=0)
        ops = [get_op_tensor_name(name)[0] for name in self.names]
        return {
            f"{self.prefix}_{op}" if self.prefix else op: float(mean)
            for op, mean in zip(ops, means, strict=True)
        }


class ClassificationError(Inferencer):
    """The share of wrong samples: true over the whole set, whatever the sizes of its batches.

    `wrong_tensor` is a vector with 1 (or True) for each wrong sample of a batch.
    """

    def __init__(
        self, wrong_tensor: str = "incorrect_vector", summary_name: str = "validation_error"
    ):
        self.wrong_tensor, self.summary_name = wrong_tensor, summary_name

    def get_fetches(self) -> list[str]:
        return [self.wrong_tensor]

    def before_inference(self) -> None:
        self._wrong = self._total = 0

    def on_fetches(self, values: list[Any]) -> None:
        (vector,) = values
        if np.ndim(vector) != 1:
            raise ValueError(
                f"expected {self.wrong_tensor!r} to be a vector with one value per sample, "
                f"received shape {np.shape(vector)}"
            )
        self._wrong += int(np.sum(vector))
        self._total += len(vector)

    def after_inference(self) -> dict[str, float]:
        return {self.summary_name: self._wrong / self._total if self._total else 0.0}

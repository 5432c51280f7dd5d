"""Arrays in memory as the batches of a trainer: whole epochs, shuffled like scikit-learn's."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from towerpack.input_source import InputSource
from towerpack.input_source.buffer import STACK_BYTES, Batches, aligned_empty


class Rows(NamedTuple):
    """The data of a fit: for each row its features (dense, or a CSR matrix), target and weight."""

    x: Any
    y: np.ndarray
    weights: np.ndarray

    def at(self, places: np.ndarray) -> Rows:
        """Some of the rows."""
        return Rows(self.x[places], self.y[places], self.weights[places])


class Epochs(InputSource):
    """Rows in batches, in an endless stream of epochs.

    All batches have the same number of rows, so that any number of steps runs in one call: the last
    batch of an epoch is filled up with rows that it repeats, and these have the weight 0. A batch
    is divided over the towers. Each tower gets `[x, y, weights, factor, share]`: `factor` is 1 by
    the sum of the weights in the whole batch, and `weights` are multiplied by it and by the number
    of towers, so the mean of the towers' weighted sums is the weighted mean of the batch. `share`
    is the tower's share of the rows of an epoch.

    With `rng`, each epoch has another order, which is that of `MLPClassifier` for the same `rng`.
    A large sparse `x` becomes dense some batches at a time.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        batch_size: int,
        towers: int = 1,
        rng: np.random.RandomState | None = None,
    ):
        x, self._y, self._weights = rows
        if not isinstance(x, np.ndarray) and math.prod(x.shape) * x.dtype.itemsize <= STACK_BYTES:
            x = x.toarray()
        self._x, self._rng = x, rng
        self._batch, self._towers = batch_size, towers
        self._rows = math.ceil(batch_size / towers)  # of each tower
        self.steps = math.ceil(len(self._y) / batch_size)
        self._order, self._epoch = np.arange(len(self._y)), -1
        width = x.shape[1] + self._y.size // len(self._y) + 1
        self._most = max(1, STACK_BYTES // (batch_size * width * x.dtype.itemsize))

    def size(self) -> int:
        return self.steps * self._towers

    def batch_size(self) -> int:
        return self._rows

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        towers, size = self._towers, self._rows
        epoch, first = divmod(self.delivered // towers, self.steps)
        if epoch != self._epoch:
            self._epoch = epoch
            if self._rng is not None:
                order = np.arange(len(self._order))
                self._rng.shuffle(order)
                self._order = self._order[order]
        # A stack always has the same number of batches, since XLA compiles for it.
        room = max(1, min(rows // towers, self.steps, self._most))
        count = min(max(1, limit // towers), self.steps - first, room)
        offsets = np.arange(size * towers)
        places = np.arange(first, first + count)[:, None] * self._batch + offsets
        real = (offsets < self._batch) & (places < len(self._order))
        chosen = self._order[places % len(self._order)]
        weights = self._weights[chosen] * real
        total = weights.sum(axis=1, keepdims=True)
        factor = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
        share = real.sum(axis=1) / (len(self._order) * towers)

        def stacked(values: np.ndarray, *shape: int) -> np.ndarray:
            stack = aligned_empty((room * towers, *shape), values.dtype)
            stack[: count * towers] = values.reshape(count * towers, *shape)
            return stack

        x = aligned_empty((room * towers, size, self._x.shape[1]), self._x.dtype)
        flat = x[: count * towers].reshape(-1, self._x.shape[1])
        if isinstance(self._x, np.ndarray):
            np.take(self._x, chosen.ravel(), axis=0, out=flat, mode="clip")
        else:
            self._x[chosen.ravel()].toarray(out=flat)
        stack = [
            x,
            stacked(self._y[chosen], size, *self._y.shape[1:]),
            stacked(weights * (factor * towers), size),
            stacked(np.repeat(factor, towers)),
            stacked(np.repeat(share, towers)),
        ]
        return Batches([stack], 0, count * towers)

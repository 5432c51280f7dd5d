"""Averages of the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback

SUFFIX = "ExponentialMovingAverage"
STEPS = "EMA_steps"


class EMA(Callback):
    """Keeps an exponential moving average of every trainable variable.

    After each step `average = decay * average + (1 - decay) * variable`, where for the first steps
    the smaller of `decay` and `(1 + steps) / (10 + steps)` counts, so that early averages are not
    those of the beginning (`warm_up=False` leaves that out). The averages are variables named
    `<name>/ExponentialMovingAverage`: they are in checkpoints, and a resumed run goes on with them.
    They begin as the weights are when training begins. The update is part of the traced step.

    `swapped()` puts the averages in the place of the variables while it is open: so do
    `InferenceRunner(..., ema=ema)` and `MinSaver(..., ema=ema)`. A predictor or an export takes
    them from any checkpoint of the run with `PredictConfig(..., ema=True)`.

    >>> ema = EMA(0.999)
    """

    chief_only = False

    def __init__(self, decay: float = 0.999, warm_up: bool = True):
        if not 0 <= decay < 1:
            raise ValueError(f"expected 0 <= decay < 1, received {decay}")
        self.decay, self.warm_up = float(decay), warm_up
        self._pairs: list[tuple[Any, Any]] = []

    def _setup_graph(self) -> None:
        store = self.trainer.store
        self._steps = store.make(STEPS, lambda: tf.zeros([], tf.int64), trainable=False)
        self._pairs = [
            (variable, store.make(f"{name}/{SUFFIX}", variable.read_value, trainable=False))
            for name, variable in store.trainable().items()
        ]
        self.trainer.add_to_step(lambda gradients: self._update())

    def _before_train(self) -> None:
        # Weights were loaded after `_setup_graph`; averages that were loaded too have a count.
        if not int(self._steps.numpy()):
            for variable, average in self._pairs:
                average.assign(variable)

    def _update(self) -> None:
        steps = tf.cast(self._steps.assign_add(1), tf.float32)
        decay = tf.constant(self.decay)
        if self.warm_up:
            decay = tf.minimum(decay, (1 + steps) / (10 + steps))
        for variable, average in self._pairs:
            average.assign_sub(tf.cast(1 - decay, average.dtype) * (average - variable))

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """While open, the variables have their averages' values (and the averages theirs)."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        if not self._pairs:
            raise RuntimeError("this EMA belongs to no trainer yet: add it to the callbacks first")
        for variable, average in self._pairs:
            value: np.ndarray = variable.numpy()
            variable.assign(average)
            average.assign(value)


def is_average(name: str) -> bool:
    """Whether a variable is one of an `EMA`'s own, by its name."""
    return name == STEPS or name.endswith(f"/{SUFFIX}")

"""Exponential moving averages of the weights."""

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

    After each step `average = decay * average + (1 - decay) * variable`. In the first steps the
    smaller of `decay` and `(1 + steps) / (10 + steps)` is used instead, so that the initial weights
    are soon forgotten (`warm_up=False` disables that). The averages are variables named
    `<name>/ExponentialMovingAverage`; checkpoints contain them, and a resumed run continues with
    them. Their initial values are the weights at the start of training. The update is part of the
    traced step.

    `swapped()` puts the averages in place of the variables while it is open. So do
    `InferenceRunner(..., ema=ema)` and `MinSaver(..., ema=ema)`. A predictor or an export reads
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
        # Weights were loaded after `_setup_graph`. A count means that averages were loaded too.
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
        """While open, the variables and their averages have each other's values."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        if not self._pairs:
            raise RuntimeError("this EMA has no trainer: add it to the callbacks first")
        for variable, average in self._pairs:
            value: np.ndarray = variable.numpy()
            variable.assign(average)
            average.assign(value)


def is_average(name: str) -> bool:
    """Whether the variable of this name belongs to an `EMA`."""
    return name == STEPS or name.endswith(f"/{SUFFIX}")

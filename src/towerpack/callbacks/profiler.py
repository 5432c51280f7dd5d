"""Traces of steps for TensorBoard's profiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback, run_directory
from towerpack.core import logger


class GraphProfiler(Callback):
    """Records a separate trace of each step; use it inside `PeriodicCallback` or the like.

    A trace contains the operations with their devices, times and memory. It is written to the run's
    directory.

    >>> from towerpack.callbacks import PeriodicCallback
    >>> seldom = PeriodicCallback(GraphProfiler(), every_k_steps=1000)
    """

    _recording = False

    def _before_train(self) -> None:
        self._directory = run_directory(self)

    def _before_run(self) -> Sequence[str] | None:
        try:
            tf.profiler.experimental.start(str(self._directory))
        except tf.errors.AlreadyExistsError as error:
            raise RuntimeError("a trace is being recorded: use one profiler at a time") from error
        self._recording = True
        return None

    def _after_run(self, values: list[Any] | None) -> None:
        self._stop()

    def _after_train(self) -> None:
        if self._recording:  # a step failed, or training ended early
            self._stop()

    def _stop(self) -> None:
        self._recording = False
        tf.profiler.experimental.stop()


class Profiler(GraphProfiler):
    """Records a trace from step `first` to step `last`, counted from the start of this run.

    It shows what really runs: steps that no callback observes are fused in the trace as well. It is
    written to the run's directory, where TensorBoard's profile plugin finds it. The first steps are
    slower than the others, so it begins with the eleventh.

    >>> trace = Profiler(first=20, last=30)
    """

    def __init__(self, first: int = 11, last: int = 20):
        if not 1 <= first <= last:
            raise ValueError(f"expected 1 <= first <= last, received {first} and {last}")
        self.first, self.last = first, last

    def _before_train(self) -> None:
        super()._before_train()
        self._started_at = self.global_step
        self._done = False

    def _next_due(self) -> int | None:
        if self._done:
            return None
        return self._started_at + (self.last if self._recording else self.first)

    def _before_run(self) -> Sequence[str] | None:
        return None if self._recording or self._done else super()._before_run()

    def _after_run(self, values: list[Any] | None) -> None:
        if self._recording and self.global_step >= self._started_at + self.last:
            self._stop()

    def _stop(self) -> None:
        super()._stop()
        self._done = True
        logger.info("the trace of steps %d to %d is in %s", self.first, self.last, self._directory)

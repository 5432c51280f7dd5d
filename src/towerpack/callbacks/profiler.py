"""Traces of steps for TensorBoard's profiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback, run_directory
from towerpack.core import logger


class Profiler(Callback):
    """Records a trace from step `first` to step `last`, counted from the start of this run.

    It shows what really runs: steps that no callback observes are fused in the trace as well. It is
    written to `logdir`, by default the run's directory, where TensorBoard's profile plugin finds
    it. The first steps are slower than the others, so it begins with the eleventh.

    >>> trace = Profiler(first=20, last=30)
    """

    def __init__(self, first: int = 11, last: int = 20, logdir: str | Path | None = None):
        if not 1 <= first <= last:
            raise ValueError(f"expected 1 <= first <= last, received {first} and {last}")
        self.first, self.last, self.logdir = first, last, logdir
        self._recording = False

    def _before_train(self) -> None:
        self._directory = run_directory(self, self.logdir, "logdir")
        self._started_at = self.global_step
        self._done = False

    def _next_due(self) -> int | None:
        if self._done:
            return None
        return self._started_at + (self.last if self._recording else self.first)

    def _before_run(self) -> Sequence[str] | None:
        if not self._recording and not self._done:
            start_trace(self._directory)
            self._recording = True
        return None

    def _after_run(self, values: list[Any] | None) -> None:
        if self._recording and self.global_step >= self._started_at + self.last:
            self._finish()

    def _after_train(self) -> None:
        if self._recording:  # training ended before `last`
            self._finish()

    def _finish(self) -> None:
        self._recording, self._done = False, True
        tf.profiler.experimental.stop()
        logger.info("the trace of steps %d to %d is in %s", self.first, self.last, self._directory)


class GraphProfiler(Callback):
    """Records a separate trace of each step; use it inside `PeriodicCallback` or the like.

    The arguments exist for old scripts: every trace contains what they selected (operations, their
    devices, times and memory).

    >>> from towerpack.callbacks import PeriodicCallback
    >>> seldom = PeriodicCallback(GraphProfiler(), every_k_steps=1000)
    """

    def __init__(
        self, dump_metadata: bool = False, dump_tracing: bool = True, dump_event: bool = False
    ):
        self.dump_metadata, self.dump_tracing = dump_metadata, dump_tracing
        self.dump_event = dump_event
        self._recording = False

    def _before_train(self) -> None:
        self._directory = run_directory(self)

    def _before_run(self) -> Sequence[str] | None:
        start_trace(self._directory)
        self._recording = True
        return None

    def _after_run(self, values: list[Any] | None) -> None:
        self._stop()

    def _after_train(self) -> None:
        self._stop()  # after a step that failed

    def _stop(self) -> None:
        if self._recording:
            self._recording = False
            tf.profiler.experimental.stop()


def start_trace(directory: Path) -> None:
    try:
        tf.profiler.experimental.start(str(directory))
    except tf.errors.AlreadyExistsError as error:
        raise RuntimeError("another trace is being recorded: use one profiler at a time") from error

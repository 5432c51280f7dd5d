"""What becomes of the tensors of a step: shown, kept in files, or given to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.callbacks.base import Callback
from towerpack.core import logger
from towerpack.core.files import atomic_file


class ProcessTensors(Callback):
    """Calls `fn` with the values of some tensors of the training tower, in every step.

    Every step is therefore a call by itself; inside `PeriodicCallback` only those that pass.

    >>> watch = ProcessTensors("cost", lambda cost: print(cost))
    """

    def __init__(self, names: str | Sequence[str], fn: Callable[..., Any]):
        self.names = [names] if isinstance(names, str) else list(names)
        if not self.names:
            raise ValueError("expected the name of at least one tensor, received none")
        self._function = fn

    def _before_run(self) -> Sequence[str] | None:
        return self.names

    def _after_run(self, values: list[Any] | None) -> None:
        self._process(values or [])

    def _process(self, values: list[Any]) -> None:
        self._function(*values)


class TensorPrinter(ProcessTensors):
    """Logs the values of tensors in every step: for a look, in a small run."""

    def __init__(self, names: str | Sequence[str]):
        super().__init__(names, self._print)

    def _print(self, *values: Any) -> None:
        for name, value in zip(self.names, values, strict=True):
            logger.info("step %d: %s = %s", self.global_step, name, value)


class DumpTensors(ProcessTensors):
    """Writes tensors of every step to `DumpTensor-<step>.npz` in the run's directory.

    The arrays have the names of the tensors.
    """

    def __init__(self, names: str | Sequence[str]):
        super().__init__(names, self._dump)

    def _before_train(self) -> None:
        self._directory = run_directory(self)

    def _dump(self, *values: Any) -> None:
        arrays = dict(zip(self.names, values, strict=True))
        path = self._directory / f"DumpTensor-{self.global_step}.npz"
        with atomic_file(path, "wb") as file:
            np.savez(file, **arrays)


DumpTensor = DumpTensors


def run_directory(callback: Callback) -> Path:
    """The directory of the run, which this callback needs."""
    directory = logger.get_logger_dir()
    if directory is None:
        raise ValueError(
            f"{callback} needs a directory: call logger.set_logger_dir(...) or "
            "logger.auto_set_dir() first"
        )
    return Path(directory)

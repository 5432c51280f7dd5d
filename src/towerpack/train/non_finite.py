"""A cost that is not a number any more: training stops, and the batch is kept to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.core.files import atomic_file


class NonFiniteCost(ArithmeticError):
    """The cost of a step was NaN or infinite."""


class BatchKeeper:
    """Keeps the inputs of a step whose cost is not finite; costs nothing in the others."""

    def __init__(self) -> None:
        self.batch: list[np.ndarray] | None = None

    def watch(self, finite: Any, inputs: Sequence[Any]) -> None:
        """Adds to the graph: if not `finite`, these inputs are kept."""
        if tf.executing_eagerly():
            if not bool(finite):
                self._keep(*(tensor.numpy() for tensor in inputs))
            return

        def keep() -> Any:
            return tf.numpy_function(self._keep, list(inputs), tf.bool)

        tf.cond(finite, lambda: tf.constant(True), keep)

    def _keep(self, *arrays: np.ndarray) -> np.bool_:
        self.batch = [np.array(array) for array in arrays]
        return np.bool_(True)

    def error(self, step: int, names: Sequence[str], position: str) -> NonFiniteCost:
        """The error to raise, after writing the batch to the run's directory if there is one."""
        kept = "call logger.set_logger_dir(...) to have the batch saved"
        directory = logger.get_logger_dir()
        if directory and self.batch is not None:
            path = Path(directory, f"non-finite-step-{step}.npz")
            towers = len(self.batch) // max(len(names), 1)
            keys = [
                f"{name}{'' if t == 0 else f'_tower{t}'}" for t in range(towers) for name in names
            ]
            with atomic_file(path, "wb") as file:
                arrays: dict[str, Any] = dict(zip(keys, self.batch, strict=True))
                np.savez(file, **arrays)
            kept = f"the batch is in {path}"
        return NonFiniteCost(
            f"the cost of step {step} is not finite (NaN or infinite), at {position}; {kept}. "
            "Lower the learning rate, clip gradients (gradproc.GlobalNormClip), or find the "
            "operation with tf.debugging.enable_check_numerics()"
        )

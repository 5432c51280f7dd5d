"""Numbers that are none any more: training stops, and the batch is kept to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.core.files import atomic_file

ADVICE = (
    "Lower the learning rate, clip gradients (gradproc.GlobalNormClip), or find the operation with "
    "tf.debugging.enable_check_numerics()"
)
NAMED_WEIGHTS = 5  # in an error; often all are ruined


class NonFiniteCost(ArithmeticError):
    """The cost of a step was NaN or infinite."""


class NonFiniteWeights(ArithmeticError):
    """A step whose cost was a number left weights that are NaN or infinite, by its gradients."""


class BatchKeeper:
    """Keeps the inputs of a step that went wrong; costs nothing in the others."""

    def __init__(self) -> None:
        self.batch: list[np.ndarray] | None = None
        self.cost = math.nan
        self.steps = 1  # the last so many, of which one went wrong
        self.quick = False

    def watch(
        self,
        finite: Any,
        cost: Any,
        inputs: Callable[[], Sequence[Any]],
        stacked: Any = 0,
        quick: bool = False,
    ) -> Any:
        """Adds to the graph: if not `finite`, `inputs()` are kept. Returns `finite`.

        They are those of one step, or stacked, of so many, of which one went wrong. `quick`: only
        small weights were looked at in each step.
        """
        if tf.executing_eagerly():
            if not bool(finite):
                self._keep(*(np.asarray(value) for value in (cost, stacked, quick, *inputs())))
            return finite

        def keep() -> Any:
            return tf.numpy_function(self._keep, [cost, stacked, quick, *inputs()], tf.bool)

        tf.cond(finite, lambda: tf.constant(True), keep)
        return finite

    def _keep(self, cost: Any, stacked: Any, quick: Any, *arrays: np.ndarray) -> np.bool_:
        self.cost, self.steps, self.quick = float(cost), max(int(stacked), 1), bool(quick)
        self.batch = [np.array(array[0] if stacked == 1 else array) for array in arrays]
        return np.bool_(True)

    def error(
        self, step: int, names: Sequence[str], position: str, weights: Mapping[str, Any]
    ) -> ArithmeticError:
        """The error to raise, after writing the batch to the run's directory if there is one."""
        kept = self._save(step, names)
        if not math.isfinite(self.cost):
            before = "; it may be by a gradient of the step before (steps_per_call=1 tells)"
            return NonFiniteCost(
                f"the cost of step {step} is not finite ({self.cost}), at {position}"
                f"{before if self.quick else ''}; {kept}. {ADVICE}"
            )
        bad = [name for name, v in weights.items() if not np.isfinite(v.numpy()).all()]
        more = f" and {len(bad) - NAMED_WEIGHTS} more" if len(bad) > NAMED_WEIGHTS else ""
        named = ", ".join(bad[:NAMED_WEIGHTS]) + more
        when = f"step {step}, at {position}"
        if self.steps > 1:
            when = (
                f"one of the steps {step - self.steps + 1} to {step}, which ran in one call, from "
                f"{position} on (steps_per_call=1 tells which)"
            )
        return NonFiniteWeights(
            f"a gradient was NaN or infinite, and so {'are' if len(bad) > 1 else 'is'} {named} "
            f"since {when}; the cost was still a number ({self.cost:.5g}); {kept}. Where a "
            "function has no slope, as tf.sqrt and tf.norm at 0, add a small number to what it "
            f"gets. {ADVICE}"
        )

    def _save(self, step: int, names: Sequence[str]) -> str:
        directory = logger.get_logger_dir()
        if not directory or self.batch is None:
            return "call logger.set_logger_dir(...) to have the batch saved"
        path = Path(directory, f"non-finite-step-{step}.npz")
        towers = len(self.batch) // max(len(names), 1)
        keys = [f"{name}{'' if t == 0 else f'_tower{t}'}" for t in range(towers) for name in names]
        with atomic_file(path, "wb") as file:
            arrays: dict[str, Any] = dict(zip(keys, self.batch, strict=True))
            np.savez(file, **arrays)
        return f"the batch is in {path}" if self.steps == 1 else f"their batches are in {path}"

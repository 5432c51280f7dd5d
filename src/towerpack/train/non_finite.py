"""Costs and weights that are NaN or infinite: training stops, and the batch is saved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """A step with a finite cost left weights that are NaN or infinite, because of its gradients."""


def all_finite(tensors: Sequence[Any]) -> Any:
    """Whether all values in all tensors are finite: checked one by one only if their sum is not."""
    tensors = [_wide(tensor) for tensor in tensors]
    return tf.cond(
        sum_is_finite(tensors),
        lambda: tf.constant(True),
        lambda: tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors]),
    )


def sum_is_finite(tensors: Sequence[Any]) -> Any:
    """Whether the sum of all values is finite: if so, all values are.

    If not, the sum may have overflowed. Half precision is summed in single.
    """
    sums = [tf.cast(tf.reduce_sum(_wide(tensor)), tf.float64) for tensor in tensors]
    return tf.math.is_finite(tf.add_n(sums))


def _wide(tensor: Any) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype.is_complex:
        return tf.abs(tensor)
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor


def non_finite_error(
    cost: float,
    step: int,
    steps: int,
    position: str,
    weights: Mapping[str, Any],
    batches: Mapping[str, np.ndarray],
    quick: bool,
    rank: str = "",
) -> ArithmeticError:
    """The error to raise, after writing the batches to the run's directory if there is one.

    Args:
        steps: the last steps up to `step`, one of which failed.
        position: of the first batch of these steps.
        quick: only small weights were checked in each step.
        rank: the end of the file's name, where each of several ranks writes its own batches.
    """
    kept = _save(f"non-finite-step-{step}{rank}.npz", steps, batches)
    if not math.isfinite(cost):
        before = "; the cause may be a gradient of the step before (try steps_per_call=1)"
        return NonFiniteCost(
            f"the cost of step {step} is not finite ({cost}), at {position}"
            f"{before if quick else ''}; {kept}. {ADVICE}"
        )
    bad = [name for name, v in weights.items() if not np.isfinite(v.numpy()).all()]
    more = f" and {len(bad) - NAMED_WEIGHTS} more" if len(bad) > NAMED_WEIGHTS else ""
    named = ", ".join(bad[:NAMED_WEIGHTS]) + more
    when = f"step {step}, at {position}"
    if steps > 1:
        when = (
            f"one of the steps {step - steps + 1} to {step}, which ran in one call, from "
            f"{position} on (with steps_per_call=1 the step is known)"
        )
    return NonFiniteWeights(
        f"a gradient was NaN or infinite, and so {'are' if len(bad) > 1 else 'is'} {named} "
        f"since {when}; the cost was finite ({cost:.5g}); {kept}. Where a "
        "function has no slope, as tf.sqrt and tf.norm at 0, add a small number to its "
        f"argument. {ADVICE}"
    )


def _save(name: str, steps: int, batches: Mapping[str, np.ndarray]) -> str:
    directory = logger.get_logger_dir()
    if not directory:
        return "call logger.set_logger_dir(...) to have the batch saved"
    path = Path(directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)  # on the disk of another host it may be missing
    with atomic_file(path, "wb") as file:
        arrays: dict[str, Any] = dict(batches)
        np.savez(file, **arrays)
    return f"the batch is in {path}" if steps == 1 else f"their batches are in {path}"

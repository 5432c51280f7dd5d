"""Errors of users' functions, told with the stage and the datapoint they happened in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Pass


def blame(
    error: Exception, stage: DataFlow, index: int | Sequence[int] | np.ndarray, pass_: Pass
) -> None:
    """Adds to an error where it happened; call it in the `except` block, then `raise`.

    `index` is that of the datapoint, or those of the datapoints of a batch. A StopIteration is
    turned into a RuntimeError: it would otherwise silently end the pass.
    """
    indices = np.atleast_1d(np.asarray(index))
    which = f"datapoint {indices[0]}"
    if len(indices) > 1:
        which = f"datapoints {indices[0]} to {indices[-1]}"
    where = f"in {stage.label()}, at {which} of epoch {pass_.epoch}"
    if isinstance(error, StopIteration):
        raise RuntimeError(f"a function raised StopIteration {where}") from error
    error.add_note(where)


def name_of(func: Callable[..., Any]) -> str:
    """A short name for a function, a partial or a callable object."""
    while isinstance(func, functools.partial):
        func = func.func
    return getattr(func, "__name__", None) or type(func).__name__


def takes_rng(func: Callable[..., Any]) -> bool:
    """Whether a function has a parameter named `rng` that is still to be given."""
    if isinstance(func, functools.partial) and "rng" in func.keywords:
        return False
    try:
        return "rng" in inspect.signature(func).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False

"""The functions that users pass to stages: their names, their arguments and their errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch


def locate_error(
    error: Exception, stage: DataFlow, index: int | Sequence[int] | np.ndarray, epoch: Epoch
) -> None:
    """Adds a note to an error: in which stage and at which datapoint it was raised.

    Call it in the `except` block, then `raise`. `index` is that of the datapoint, or those of the
    datapoints of a batch. A StopIteration becomes a RuntimeError, because it would silently end the
    epoch.
    """
    indices = np.atleast_1d(np.asarray(index))
    which = f"datapoint {indices[0]}"
    if len(indices) > 1:
        which = f"datapoints {indices[0]} to {indices[-1]}"
    where = f"in {stage.label()}, at {which} of epoch {epoch.number}"
    if isinstance(error, StopIteration):
        raise RuntimeError(f"a function raised StopIteration {where}") from error
    error.add_note(where)


def checked_function(func: Any) -> Callable[..., Any]:
    if not callable(func):
        raise TypeError(f"expected a function, received {func!r} ({type(func).__name__})")
    return func


def name_of(func: Callable[..., Any]) -> str:
    """A short name for a function, a partial or a callable object."""
    while isinstance(func, functools.partial):
        func = func.func
    return getattr(func, "__name__", None) or type(func).__name__


def takes_rng(func: Callable[..., Any]) -> bool:
    """Whether a function has a parameter named `rng` that has no value yet."""
    if isinstance(func, functools.partial) and "rng" in func.keywords:
        return False
    try:
        return "rng" in inspect.signature(func).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False


def component(datapoint: Any, index: int | str) -> Any:
    """The component at a position or key, or an error that lists what the datapoint has."""
    try:
        return datapoint[index]
    except (LookupError, TypeError) as error:
        if isinstance(datapoint, dict):
            there = f"keys {list(datapoint)}"
        elif isinstance(datapoint, list | tuple):
            there = f"{len(datapoint)} components"
        else:
            there = f"no components: it is a {type(datapoint).__name__}"
        raise LookupError(f"no component {index!r} in a datapoint that has {there}") from error

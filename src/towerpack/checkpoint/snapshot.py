"""Copies of variables, taken between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# Memory that was never touched costs several times as much as the copy itself: the first access of
# each page goes through the kernel. So the arrays of one snapshot serve the next one.


class Snapshot:
    """Arrays that hold what the variables held when `take` was called, whatever happens to them.

    The arrays are reused: what `take` gave is overwritten by the next `take`.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def take(self, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """A real copy of each variable; on a CPU what TensorFlow gives may be the variable itself.

        Costs one copy in memory, on the calling thread.
        """
        taken = {}
        for name, variable in variables.items():
            value = view_of(variable)
            array = self._arrays.get(name)
            if array is None or array.shape != value.shape or array.dtype != value.dtype:
                array = np.empty(value.shape, value.dtype)
            np.copyto(array, value)
            taken[name] = array
        self._arrays = taken
        return dict(taken)


def view_of(variable: Any) -> np.ndarray:
    """The value as an array, without a copy where that is possible: look at it, do not keep it."""
    if isinstance(variable, np.ndarray | np.generic | int | float | bool | str | bytes | list):
        return np.asarray(variable)
    value = variable.read_value() if hasattr(variable, "read_value") else variable
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):  # strings, bfloat16, values on another device
        return np.asarray(value.numpy())

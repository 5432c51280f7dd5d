"""Do two runtimes give the same numbers?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from towerpack.export.runner import Runner


class ExportError(RuntimeError):
    """An export did not reproduce the tower's own numbers; no file was left."""


def largest_difference(
    expected: Mapping[str, np.ndarray], received: Mapping[str, np.ndarray]
) -> float:
    """The largest difference between outputs of the same keys.

    For floating-point outputs it is relative to the output's largest number, or to 1 if that is
    smaller; for all others it is the share of elements that differ. Where there is a NaN on one
    side, it is NaN, which is within no tolerance.

    >>> largest_difference({"y": np.array([2.0, 4.0])}, {"y": np.array([2.0, 5.0])})
    0.25
    """
    largest = 0.0
    for key, value in expected.items():
        if key not in received:
            raise ExportError(f"the output {key!r} is missing; the export gives {sorted(received)}")
        other = np.asarray(received[key])
        if value.shape != other.shape:
            raise ExportError(
                f"expected the output {key!r} of shape {value.shape}, received {other.shape}"
            )
        # Not max(): it would drop a NaN.
        largest = float(np.maximum(largest, _difference(value, other)))
    return largest


def _difference(expected: np.ndarray, received: np.ndarray) -> float:
    if not expected.size:
        return 0.0
    if not np.issubdtype(expected.dtype, np.floating) or received.dtype.kind not in "fV":
        return float(np.mean(expected != received))
    expected, received = expected.astype(np.float64), received.astype(np.float64)
    same = (expected == received) | (np.isnan(expected) & np.isnan(received))
    finite = expected[np.isfinite(expected)]
    scale = max(1.0, float(np.max(np.abs(finite), initial=0)))
    with np.errstate(invalid="ignore"):  # infinity less infinity: they are the same
        return float(np.max(np.where(same, 0.0, np.abs(expected - received)))) / scale


def checked_difference(
    expected: Runner,
    received: Runner,
    inputs: Iterable[Mapping[str, np.ndarray]],
    tolerance: float,
    name: str,
) -> float:
    """The largest difference between two functions on these inputs.

    Raises `ExportError` unless it is within the tolerance.
    """
    largest = 0.0
    for given in inputs:
        difference = largest_difference(expected(given), received(given))
        if not difference <= tolerance:
            raise ExportError(
                f"{name}, reloaded, differs from the tower by {difference:.3g}, which is more than "
                f"the tolerance {tolerance:g}; nothing was written. If that is good enough, pass "
                "tolerance="
            )
        largest = max(largest, difference)
    return largest

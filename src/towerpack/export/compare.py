"""The check of an export: runs two runtimes on the same inputs and compares their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from towerpack.export.format import Runner

BATCH = 2  # more than one row, to detect a batch size that was fixed by mistake
SIZE = 32  # of other dimensions that are open in the signature


class ExportError(RuntimeError):
    """An export could not be made, or differs from the tower; no file was written."""


def largest_difference(
    expected: Mapping[str, np.ndarray], received: Mapping[str, np.ndarray]
) -> float:
    """The largest difference between outputs of the same keys.

    For floating-point outputs it is relative to the output's largest number, or to 1 if that is
    smaller; for all others it is the share of elements that differ. If only one side has a NaN, the
    difference is NaN, which exceeds every tolerance.

    >>> largest_difference({"y": np.array([2.0, 4.0])}, {"y": np.array([2.0, 5.0])})
    0.25
    """
    largest = 0.0
    for key, value in expected.items():
        if key not in received:
            raise ExportError(f"the output {key!r} is missing; the export has {sorted(received)}")
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
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, but `same` covers it
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
                f"the tolerance {tolerance:g}; nothing was written. If this difference is "
                "acceptable, pass a larger tolerance="
            )
        largest = max(largest, difference)
    return largest


def probe_inputs(specs: Sequence[Any], given: Any = None) -> dict[str, Any]:
    """The given arrays by key, or random ones for these specs, which are the same in every call.

    Random uint8 values are drawn from the whole range, floats from [0, 1). Other integers are zero,
    which is a valid index everywhere. Strings must be given.
    """
    if given is not None:
        return _given(specs, given)
    rng = np.random.default_rng(0)
    return {spec.name: _random(spec, rng) for spec in specs}


def _given(specs: Sequence[Any], given: Any) -> dict[str, Any]:
    names = [spec.name for spec in specs]
    if isinstance(given, Mapping):
        if not set(names) <= set(given):
            raise ValueError(f"expected a probe for the inputs {names}, received {sorted(given)}")
        return {name: np.asarray(given[name]) for name in names}
    arrays = list(given)
    if len(arrays) != len(names):
        raise ValueError(
            f"expected a probe with {len(names)} arrays, for the inputs {names}, received "
            f"{len(arrays)}"
        )
    return {name: np.asarray(array) for name, array in zip(names, arrays, strict=True)}


def _random(spec: Any, rng: np.random.Generator) -> np.ndarray:
    if spec.shape.rank is None:
        raise ValueError(
            f"expected a probe, because the input {spec.name!r} has no known rank: pass "
            "probe=[array, ...]"
        )
    shape = [
        (BATCH if place == 0 else SIZE) if size is None else size
        for place, size in enumerate(spec.shape)
    ]
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    if spec.dtype.is_floating:
        return rng.random(shape).astype(dtype)
    if spec.dtype.is_bool or dtype == np.uint8:
        return rng.integers(0, 2 if spec.dtype.is_bool else 256, shape).astype(dtype)
    if spec.dtype.is_integer:
        return np.zeros(shape, dtype)
    raise ValueError(
        f"expected a probe for inputs of type {spec.dtype.name}, like {spec.name!r}, which cannot "
        "be generated: pass probe=[array, ...] to check the export with"
    )


def trial_batches(
    inputs: Mapping[str, np.ndarray], specs: Sequence[Any]
) -> Iterator[Mapping[str, np.ndarray]]:
    """Splits the inputs into batches that a model with these specs accepts.

    With an open batch size: all rows at once, then the first row alone. With a fixed one: all rows
    in batches of that size. If the inputs have no common batch size: the inputs as they are.
    """
    sizes = {spec.shape[0] if spec.shape.rank else 0 for spec in specs}
    rows = {np.shape(inputs[spec.name])[:1] for spec in specs}
    if len(sizes) != 1 or len(rows) != 1 or 0 in sizes:
        yield inputs
        return
    (size,) = sizes
    if size is not None:
        yield from in_batches(inputs, size)
        return
    yield inputs
    yield {name: array[:1] for name, array in inputs.items()}


def in_batches(inputs: Mapping[str, np.ndarray], size: int) -> Iterator[dict[str, np.ndarray]]:
    """All rows in batches of this size; the last batch is filled with the first rows.

    >>> [batch["x"].tolist() for batch in in_batches({"x": np.array([1, 2, 3])}, 2)]
    [[1, 2], [3, 1]]
    """
    rows = max(len(array) for array in inputs.values())
    for start in range(0, rows, size):
        places = range(start, start + size)
        yield {key: np.take(array, places, axis=0, mode="wrap") for key, array in inputs.items()}

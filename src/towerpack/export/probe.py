"""Inputs on which an export is tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

BATCH = 2  # more than one, so that a batch size fixed by mistake shows
SIZE = 32  # of other dimensions that the signature leaves open


def probe_inputs(specs: Sequence[Any], given: Any = None, batch: int = BATCH) -> dict[str, Any]:
    """The given arrays by key, or random ones for these specs: the same ones every time.

    Pixels are drawn from all of uint8, floats from [0, 1); other integers are zeros, which any
    index may be. Text cannot be made up.
    """
    if given is not None:
        return _given(specs, given)
    rng = np.random.default_rng(0)
    return {spec.name: _random(spec, rng, batch) for spec in specs}


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


def _random(spec: Any, rng: np.random.Generator, batch: int) -> np.ndarray:
    if spec.shape.rank is None:
        raise ValueError(f"the input {spec.name!r} has no known rank: pass probe=[array, ...]")
    shape = [
        (batch if place == 0 else SIZE) if size is None else size
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
        f"inputs of type {spec.dtype.name}, like {spec.name!r}, cannot be made up: pass "
        "probe=[array, ...] to try the export with"
    )


def tries(
    inputs: Mapping[str, np.ndarray], specs: Sequence[Any]
) -> Iterator[Mapping[str, np.ndarray]]:
    """The inputs as a model with these specs takes them.

    All at once and the first row alone, where the batch size is free; batch after batch where it is
    fixed; just as they are where the inputs have no common batch size.
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
    """All rows in batches of this size; the last one is filled up with the first rows.

    >>> [batch["x"].tolist() for batch in in_batches({"x": np.array([1, 2, 3])}, 2)]
    [[1, 2], [3, 1]]
    """
    rows = max(len(array) for array in inputs.values())
    for start in range(0, rows, size):
        places = range(start, start + size)
        yield {key: np.take(array, places, axis=0, mode="wrap") for key, array in inputs.items()}

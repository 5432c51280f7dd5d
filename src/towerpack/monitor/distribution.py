"""How numbers are distributed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BINS = 30  # as many as TensorBoard draws
# Numbers at a time: in double precision they stay in the processor's cache, and in memory that the
# process has already; to get fresh pages for larger parts takes longer than the counting.
PART = 1 << 13
NEAR = 1e-6  # of a bin's width


@dataclass(frozen=True)
class Distribution:
    """Counts of numbers in bins of equal width from the least to the greatest, and their sums."""

    least: float
    greatest: float
    count: int
    total: float
    total_of_squares: float
    edges: np.ndarray
    counts: np.ndarray


def distribution(values: np.ndarray, bins: int = BINS) -> Distribution:
    """Of all finite `values`, a flat array of any type; of a single zero if there are none.

    Summed in double precision. Takes little memory beside `values`, however many there are.

    >>> found = distribution(np.float32([1, 2, 2, np.nan]), bins=2)
    >>> found.count, found.least, found.greatest, found.total, found.counts.tolist()
    (3, 1.0, 2.0, 5.0, [1, 2])
    """
    ranges = [(part.min(), part.max()) for part in _finite_parts(values)]
    if not ranges:
        return distribution(np.zeros(1), bins)
    least = float(min(low for low, _ in ranges))
    greatest = float(max(high for _, high in ranges))
    counts = np.zeros(bins, np.int64)
    count, total, total_of_squares = 0, 0.0, 0.0
    edges = _edges(least, greatest, bins)
    for part in _finite_parts(values):
        part = part.astype(np.float64)
        counts += np.bincount(_bins_of(part, edges), minlength=bins)
        count += part.size
        total += float(part.sum())
        with np.errstate(over="ignore"):  # it is infinite then
            total_of_squares += float(part.dot(part))
    return Distribution(least, greatest, count, total, total_of_squares, edges, counts)


def _finite_parts(values: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, values.size, PART):
        part = values[start : start + PART]
        if part.dtype.kind == "f":
            finite = np.isfinite(part)
            if not finite.all():
                part = part[finite]
        if part.size:
            yield part


def _edges(least: float, greatest: float, bins: int) -> np.ndarray:
    # Between numbers that are all but equal there is no room for so many edges.
    room = 4 * bins * float(np.spacing(max(abs(least), abs(greatest))))
    margin = 0.0 if greatest - least > room else max(0.5, room)
    return np.linspace(least - margin, greatest + margin, bins + 1)


def _bins_of(part: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bin of each number: that of `np.histogram`, which takes longer."""
    bins = edges.size - 1
    places = part - edges[0]
    places *= bins / (edges[-1] - edges[0])
    found = places.astype(np.intp)
    # Rounding may have moved what is on an edge; and the last bin has its upper edge, too.
    gaps = np.abs(np.rint(places) - places)
    if gaps.min() < NEAR:
        near = gaps < NEAR
        found[near] = np.minimum(np.searchsorted(edges, part[near], side="right"), bins) - 1
    return found

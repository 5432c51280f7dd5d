"""How numbers are distributed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BINS = 30  # as many as TensorBoard draws
# Numbers at a time: a copy of all weights of a large layer, in double precision, would be felt.
PART = 1 << 16


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
    edges = np.histogram_bin_edges([], bins, (least, greatest))
    for part in _finite_parts(values):
        counts += np.histogram(part, bins, (least, greatest))[0]
        count += part.size
        total += float(part.sum())
        total_of_squares += float(np.square(part).sum())
    return Distribution(least, greatest, count, total, total_of_squares, edges, counts)


def _finite_parts(values: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, values.size, PART):
        part = values[start : start + PART].astype(np.float64)
        finite = np.isfinite(part)
        if not finite.all():
            part = part[finite]
        if part.size:
            yield part

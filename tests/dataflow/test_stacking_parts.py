"""Batches whose rows are read by parts: the same as if they had been read at once."""

import math

import numpy as np
import pytest

from towerpack.dataflow import BatchError, DroppedDatapoint, stacking_parts
from towerpack.dataflow.stacking import stack_rows
from towerpack.dataflow.stacking_parts import CACHE_BYTES, stack_in_parts

LARGE = 1 << 17


class Rows:
    """Rows of `size` bytes; it keeps how many were asked for together."""

    def __init__(self, size, odd=None, dropped=None):
        self.size, self.odd, self.dropped, self.parts = size, odd, dropped, []

    def __call__(self, indices):
        self.parts.append(len(indices))
        return [self.row(int(index)) for index in indices]

    def row(self, index):
        if index == self.dropped:
            return None
        size = self.size + (index == self.odd)
        return [np.full(size, index % 251, np.uint8), index, np.float32(index)]


@pytest.mark.parametrize(
    ("size", "slow", "parts"),
    [
        (10, False, [1, 29]),  # small ones at once
        (CACHE_BYTES // 10, False, [1, 10, 10, 9]),
        (10, True, [1, 29]),
        (LARGE, True, [1] * 30),
        (2 * CACHE_BYTES, False, [1] * 30),
    ],
)
def test_parts(size, slow, parts, monkeypatch):
    monkeypatch.setattr(stacking_parts, "SLOW_ROW", -1.0 if slow else math.inf)
    rows = Rows(size)
    batch = stack_in_parts(rows, range(100, 130), np.empty)
    assert rows.parts == parts
    for array, expected in zip(batch, stack_rows(Rows(size)(range(100, 130))), strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype


@pytest.mark.parametrize("threshold", [-1.0, math.inf])
def test_errors_name_the_datapoint_in_whatever_part_it_is(threshold, monkeypatch):
    monkeypatch.setattr(stacking_parts, "SLOW_ROW", threshold)
    rows = Rows(LARGE, odd=117)
    with pytest.raises(BatchError, match=r"component \[0\] of datapoint 117: expected uint8"):
        stack_in_parts(rows, range(100, 130), np.empty)
    rows = Rows(LARGE, dropped=118)
    with pytest.raises(DroppedDatapoint, match="datapoint 118 was dropped"):
        stack_in_parts(rows, range(100, 130), np.empty)

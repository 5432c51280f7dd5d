"""Distributions, in parts, equal those of the whole."""

import ml_dtypes
import numpy as np
import pytest

from towerpack.monitor import Monitors
from towerpack.monitor.base import MonitorBase
from towerpack.monitor.event_file import PART, distribution


@pytest.mark.parametrize("size", [1, 10, PART, PART + 1, 3 * PART + 17])
def test_equals_numpys_histogram_of_the_whole(size):
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    found = distribution(values)
    whole = values.astype(np.float64)
    counts, edges = np.histogram(whole, bins=30)
    assert (found.counts == counts).all()
    assert (found.edges == edges).all()
    assert found.count == size
    assert (found.least, found.greatest) == (whole.min(), whole.max())
    assert found.total == pytest.approx(whole.sum(), abs=1e-9)
    assert found.total_of_squares == pytest.approx(np.square(whole).sum())


@pytest.mark.parametrize(
    "values",
    [
        np.arange(-7, 24).repeat(5),  # every number on an edge
        np.linspace(0.1, 0.7, 31),
        np.linspace(0.1, 0.7, 31, dtype=np.float32),
        np.float32([3, 3, 3]),
        np.float64([-1e300, 0, 1e300]),
        np.array([True, False, True]),
    ],
    ids=["integers", "edges", "edges in single", "equal", "huge", "bools"],
)
def test_equals_numpys_histogram_at_the_edges(values):
    found = distribution(values)
    counts, edges = np.histogram(values.astype(np.float64), bins=30)
    assert (found.edges == edges).all() and (found.counts == counts).all()


@pytest.mark.parametrize("values", [[0, 5e-324], [1e16, 1e16], [1e16, 1e16 + 2], [-1e300] * 2])
def test_numbers_that_are_all_but_equal(values):
    found = distribution(np.float64(values))  # of most of these numpy makes no histogram
    assert (np.diff(found.edges) > 0).all() and found.counts.sum() == 2
    assert found.edges[0] < values[0] and values[1] < found.edges[-1]


def test_only_finite_numbers_count():
    values = np.ones(2 * PART, np.float32)
    values[:PART] = np.nan  # a whole part of none
    values[-1] = np.inf
    found = distribution(values)
    assert found.count == PART - 1 == found.counts.sum()
    assert distribution(np.float32([np.nan])).count == 1
    assert distribution(np.zeros(0)).count == 1


def test_takes_little_memory(monkeypatch):
    sizes = []
    real = np.bincount

    def bincount(part, *arguments, **options):
        sizes.append(part.size)
        return real(part, *arguments, **options)

    monkeypatch.setattr(np, "bincount", bincount)
    distribution(np.zeros(10 * PART, np.float32))
    assert max(sizes) == PART


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float16, ml_dtypes.bfloat16, object])
def test_monitors_get_numbers_of_numpy(dtype):
    got = []

    class Keep(MonitorBase):
        def process_histogram(self, name, values, step, epoch):
            got.append(values)

    Monitors([Keep()]).put_histogram("some", np.array([[0, 1], [1, 1]]).astype(dtype))
    assert got[0].dtype.kind in "biuf" and got[0].tolist() == [0, 1, 1, 1]
    assert distribution(got[0]).total == 3

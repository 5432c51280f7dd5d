"""Datapoints drawn by hypothesis, and exact comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.dataflow.laws import frozen

DTYPES = ["|b1", "|u1", "<i2", "<i4", "<i8", "<u8", "<f4", "<f8", ">i4", "<f2", "<c8", "|S3", "<U2"]

arrays = hnp.arrays(
    st.sampled_from(DTYPES).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
leaves = st.one_of(arrays, scalars)
datapoints = st.one_of(
    st.lists(leaves, max_size=4),
    st.dictionaries(st.text(max_size=3), leaves, max_size=3),
    st.tuples(leaves, st.lists(leaves, max_size=2)),
)
flows = st.lists(datapoints, max_size=6)


def same(received: Any, expected: Any) -> None:
    """Equal in structure, type, dtype, shape and bits; a NaN equals itself."""
    for a, b in zip(received, expected, strict=True):
        assert repr(frozen(a)) == repr(frozen(b))


def noisy(datapoint, rng):
    """The first component with a random number added."""
    return [datapoint[0] + rng.integers(1000).astype(datapoint[0].dtype)]

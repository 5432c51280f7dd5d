"""Gradients travel in few messages, and come back as they were."""

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.train import packing
from towerpack.train.packing import packed_sum


def twice(sent):
    def add(parts, bytes_per_pack):
        sent.extend(parts)
        return [
            tf.IndexedSlices(2 * p.values, p.indices, p.dense_shape)
            if isinstance(p, tf.IndexedSlices)
            else 2 * p
            for p in parts
        ]

    return add


@pytest.mark.parametrize("chunk", [4, 7, 1 << 19])
def test_values_of_all_forms_come_back_in_their_order(chunk, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    shapes = [[3, 5], [], [7], [1, 1, 2], [4]]
    dtypes = [tf.float32, tf.float32, tf.float64, tf.float16, tf.bfloat16]
    values = [
        tf.constant(rng.normal(size=shape), dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    kinds = [tf.float64 if v.dtype == tf.float64 else tf.float32 for v in values]
    sparse = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 4]), tf.constant([9, 3]))
    sent = []
    *found, rows = packed_sum(twice(sent), 1, [*values, sparse], [*kinds, tf.float32])
    for value, double in zip(values, found, strict=True):
        assert double.dtype == value.dtype
        np.testing.assert_array_equal(tf.cast(double, tf.float64), tf.cast(value * 2, tf.float64))
    np.testing.assert_array_equal(rows.values, 2 * np.ones([2, 3]))
    dense = [part for part in sent if not isinstance(part, tf.IndexedSlices)]
    assert max(part.shape[0] for part in dense) <= chunk
    assert len(dense) == sum(-(-value.shape.num_elements() // chunk) for value in values)


def test_half_precision_on_the_wire_rounds_only_what_is_asked():
    sent = []
    gradient, count = packed_sum(
        twice(sent), 1, [tf.constant([1 / 3]), tf.constant(257.0)], [tf.bfloat16, tf.float32]
    )
    assert {part.dtype for part in sent} == {tf.bfloat16, tf.float32}
    assert gradient.dtype == tf.float32
    assert float(count) == 514
    assert float(gradient[0]) == pytest.approx(2 / 3, rel=0.01)

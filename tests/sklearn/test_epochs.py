import numpy as np
import pytest
import scipy.sparse
from sklearn.utils import shuffle

from towerpack._tensorflow import tf
from towerpack.sklearn.epochs import Epochs, Rows

X = np.arange(22, dtype=np.float32).reshape(11, 2)
Y = np.arange(11)
WEIGHTS = np.array([1, 2, 0, 1, 3, 1, 1, 0, 0, 0, 0], np.float32)


def steps(source, count, towers=1, at_once=3):
    """The next batches of all towers, as lists of arrays."""
    found = []
    while len(found) < count:
        batches = source.next((count - len(found)) * towers, towers, at_once * towers)
        for step in range(batches.count // towers):
            found.append([batches.batch(step * towers + tower) for tower in range(towers)])
    return found


def started(x=X, rng=None, towers=1):
    source = Epochs(Rows(x, Y, WEIGHTS), batch_size=4, towers=towers, rng=rng)
    source.setup([tf.TensorSpec(None, tf.float32, name) for name in "xywfs"])
    return source


@pytest.mark.parametrize("at_once", [1, 2, 32])
def test_every_row_once_per_epoch_in_the_order_of_scikit_learn(at_once):
    source, rng, order = (
        started(rng=np.random.RandomState(5)),
        np.random.RandomState(5),
        np.arange(11),
    )
    for _ in range(3):
        order = shuffle(order, random_state=rng)
        rows = [batch[1] for (batch,) in steps(source, 3, at_once=at_once)]
        assert [len(batch) for batch in rows] == [4, 4, 4]
        np.testing.assert_array_equal(np.concatenate(rows)[:11], order)


def test_weights_are_normalized_and_rows_that_fill_a_batch_have_none():
    (first,), (second,), (third,) = steps(started(), 3)
    np.testing.assert_allclose(first[2], [1 / 4, 2 / 4, 0, 1 / 4])
    np.testing.assert_allclose(second[2], [3 / 5, 1 / 5, 1 / 5, 0])
    np.testing.assert_array_equal(third[2], np.zeros(4))  # only weights of 0: nothing to learn
    assert [float(batch[3]) for batch in (first, second, third)] == [0.25, pytest.approx(0.2), 0]
    np.testing.assert_allclose(
        [batch[4] for batch in (first, second, third)], np.array([4, 4, 3]) / 11
    )


@pytest.mark.parametrize("towers", [2, 3])
def test_towers_divide_each_batch(towers):
    whole, parts = steps(started(), 3), steps(started(towers=towers), 3, towers)
    for (batch,), divided in zip(whole, parts, strict=True):
        real = batch[2] > 0
        weights = np.concatenate([part[2] for part in divided])
        rows = np.concatenate([part[1] for part in divided])
        np.testing.assert_array_equal(rows[weights > 0], batch[1][real])
        np.testing.assert_allclose(weights[weights > 0] / towers, batch[2][real], rtol=1e-6)
        np.testing.assert_allclose(sum(part[4] for part in divided), batch[4])


def test_sparse_rows_become_dense(monkeypatch):
    dense = steps(started(), 6)
    for limit in (1, 1 << 20):
        monkeypatch.setattr("towerpack.sklearn.epochs.STACK_BYTES", limit)
        sparse = steps(started(scipy.sparse.csr_array(X)), 6)
        for one, other in zip(dense, sparse, strict=True):
            np.testing.assert_array_equal(one[0][0], other[0][0])

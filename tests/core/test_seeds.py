import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack.core.seeds import Stream, key_of, permutation

PATHS = st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=4)


def draw(generator):
    return generator.integers(2**63, size=4).tolist()


@given(st.integers(0, 2**63), PATHS, st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_generator_is_a_function_of_seed_path_epoch_and_index(seed, path, epoch, index):
    stream = Stream(seed, *path)
    expected = draw(stream.fresh(epoch, index))
    draw(stream.generator(epoch + 1, index))  # leaves a half-used buffer behind
    stream.generator(0, 0).integers(2, dtype=np.uint32)
    assert draw(stream.generator(epoch, index)) == expected
    assert draw(pickle.loads(pickle.dumps(stream)).generator(epoch, index)) == expected


@given(st.tuples(st.integers(), PATHS), st.tuples(st.integers(), PATHS))
def test_different_paths_have_different_keys(one, other):
    same = (one[0], list(one[1])) == (other[0], list(other[1]))
    assert (key_of(*one) == key_of(*other)) == same


def test_paths_are_not_joined_ambiguously():
    paths = [("a", "b"), ("a/b",), ("a', 'b",), (1, 2), ("1", "2"), (12,), ()]
    assert len({key_of(0, path) for path in paths}) == len(paths)


def test_streams_of_neighbours_do_not_overlap():
    stream = Stream(0, "x")
    seen = [tuple(draw(stream.generator(e, i))) for e in range(20) for i in range(50)]
    assert len(set(seen)) == len(seen)
    # The counter word below the index runs: a million draws must not reach the next datapoint's.
    long = set(stream.generator(0, 0).integers(2**63, size=100_000).tolist())
    assert not long & set(stream.generator(0, 1).integers(2**63, size=100).tolist())


def test_numpy_integers_are_integers():
    stream = Stream(np.int64(3), np.int64(1))
    expected = draw(Stream(3, 1).generator(5, 6))
    assert draw(stream.generator(np.int64(5), np.int32(6))) == expected


@pytest.mark.parametrize("seed", [1.0, "1", None, True])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(TypeError, match="expected an integer seed, received"):
        Stream(seed)


def test_permutation():
    order = permutation(1, (), epoch=2, size=1000)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(1000))
    assert (order == permutation(1, (), epoch=2, size=1000)).all()
    assert (order != permutation(1, (), epoch=3, size=1000)).any()
    assert permutation(0, (), 0, 0).tolist() == []


def test_the_numbers_are_those_of_earlier_versions():
    # A change here breaks the resuming of every saved run.
    assert draw(Stream(7, "augment").generator(2, 41)) == EXPECTED_DRAW
    assert permutation(7, (1,), 3, 6).tolist() == EXPECTED_ORDER


EXPECTED_DRAW = [
    2720908823178920324,
    6152518328604880055,
    3663942950427015901,
    5363540191260772103,
]
EXPECTED_ORDER = [4, 2, 1, 0, 3, 5]

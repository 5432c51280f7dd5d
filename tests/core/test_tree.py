from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack.core import tree

Point = namedtuple("Point", ["x", "y"])

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary())
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.builds(Point, inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
    ),
    max_leaves=20,
)


@given(TREES)
def test_flatten_and_unflatten_are_inverse(value):
    leaves, spec = tree.flatten(value)
    again = tree.unflatten(spec, leaves)
    assert again == value
    assert type(again) is type(value)
    assert leaves == tree.leaves(value)
    assert tree.count_leaves(spec) == len(leaves)


@given(TREES)
def test_paths_reach_their_leaves(value):
    for path, leaf in tree.leaves_with_paths(value):
        assert eval(f"value{path}", {"value": value}) is leaf  # noqa: S307


@given(TREES)
def test_a_tree_does_not_differ_from_itself(value):
    assert tree.difference(value, value) is None
    assert tree.map_leaves(lambda leaf: leaf, value) == value


def test_unflatten_says_how_many_leaves_it_expected():
    _, spec = tree.flatten([1, 2])
    with pytest.raises(ValueError, match="expected 2 leaves for this structure, received 3"):
        tree.unflatten(spec, [1, 2, 3])


def test_map_leaves_names_the_leaf_that_failed():
    with pytest.raises(ZeroDivisionError) as caught:
        tree.map_leaves(lambda x: 1 / x, {"a": [1, 0]})
    assert caught.value.__notes__ == ["in component ['a'][1]"]


@pytest.mark.parametrize(
    ("expected", "received", "words"),
    [
        ([1, 2], [1], "the datapoint: expected 2 components, received 1"),
        ([1, [2]], [1, 2], "component [1]: expected a list of 1, received a leaf (int)"),
        ([1], (1,), "the datapoint: expected a list of 1, received a tuple of 1"),
        ({"a": [{"b": 1}]}, {"a": [{"c": 1}]}, "component ['a'][0]: expected keys ['b']"),
    ],
)
def test_difference_in_words(expected, received, words):
    assert words in tree.difference(expected, received)


def test_kinds_of_dict():
    for value in (OrderedDict(b=1, a=2), {"b": 1, "a": 2}):
        assert list(tree.map_leaves(lambda x: x + 1, value).items()) == [("b", 2), ("a", 3)]
    assert tree.map_leaves(lambda x: x, defaultdict(list, a=1)) == {"a": 1}


def test_an_array_is_a_leaf():
    array = np.arange(3)
    assert tree.leaves([array])[0] is array

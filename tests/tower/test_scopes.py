import pytest

from towerpack._tensorflow import tf, v1
from towerpack.tower import TowerContext, VariableStore
from towerpack.tower.scopes import (
    auto_reuse_variable_scope,
    cached_name_scope,
    under_name_scope,
    under_variable_scope,
)


@pytest.fixture
def store():
    store = VariableStore()
    with tf.Graph().as_default(), TowerContext("", is_training=True, store=store):
        yield store


def weight():
    return v1.get_variable("W", [2])


def test_auto_reuse_shares_under_one_scope_only(store):
    net = auto_reuse_variable_scope(weight)
    with v1.variable_scope("a"):
        first, second = net(), net()
    with v1.variable_scope("b"):
        other = net()
    assert first is second
    assert other is not first
    assert list(store.variables) == ["a/W", "b/W"]


def test_the_first_call_still_finds_doubled_names(store):
    @auto_reuse_variable_scope
    def doubled():
        weight()
        weight()

    with pytest.raises(ValueError, match="made twice"):
        doubled()


def test_a_new_variable_in_the_second_call_is_an_error(store):
    names = iter(["first", "second"])

    @auto_reuse_variable_scope
    def changing():
        return v1.get_variable(next(names), [2])

    changing()
    with pytest.raises(ValueError, match="no variable 'second'"):
        changing()


def test_name_scopes(store):
    @under_name_scope()
    def layer():
        return tf.constant(1.0, name="x")

    @under_name_scope("other")
    def named():
        return tf.constant(1.0, name="x")

    assert layer().name == "layer/x:0"
    assert layer().name == "layer_1/x:0"
    assert named().name == "other/x:0"


def test_variable_scopes(store):
    @under_variable_scope()
    def block():
        return weight()

    block()
    assert list(store.variables) == ["block/W"]


def test_cached_name_scopes_are_the_same_each_time(store):
    for expected in ("stats/x:0", "stats/x_1:0"):
        with tf.name_scope("outer"), cached_name_scope("stats"):
            assert tf.constant(1.0, name="x").name == expected
    with cached_name_scope("a"), cached_name_scope("b", top_level=False):
        assert tf.constant(1.0, name="x").name == "a/b/x:0"

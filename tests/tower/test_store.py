import numpy as np
import pytest

from towerpack._tensorflow import tf, v1
from towerpack.tower import (
    TowerContext,
    VariableStore,
    get_global_step_value,
    get_global_step_var,
)


def test_a_variable_is_made_once_and_found_again_by_name():
    store = VariableStore()
    with store.scope(), v1.variable_scope("conv0"):
        first = v1.get_variable("W", [2, 3])
    with store.scope(), v1.variable_scope("conv0"):
        second = v1.get_variable("W", [2, 3])
    assert first is second
    assert list(store.variables) == ["conv0/W"]


def test_two_stores_share_nothing():
    a, b = VariableStore(), VariableStore()
    with a.scope():
        first = v1.get_variable("W", [2])
    with b.scope():
        second = v1.get_variable("W", [2])
    assert first is not second


def test_variables_made_in_a_trace_are_real_and_shared_by_further_traces():
    store = VariableStore()

    def compute(x):
        with store.scope():
            return x * v1.get_variable("k", initializer=3.0)

    assert float(tf.function(compute)(tf.constant(2.0))) == 6
    store["k"].assign(5.0)
    assert float(tf.function(compute)(tf.constant(2.0))) == 10


def test_making_a_variable_twice_in_one_tower_is_an_error_that_names_it():
    with tf.Graph().as_default(), VariableStore().scope():
        v1.get_variable("fc/W", [2])
        with pytest.raises(ValueError, match=r"'fc/W' is made twice"):
            v1.get_variable("fc/W", [2])


def test_auto_reuse_shares_on_purpose():
    with (
        tf.Graph().as_default(),
        VariableStore().scope(),
        v1.variable_scope("fc", reuse=v1.AUTO_REUSE),
    ):
        assert v1.get_variable("W", [2]) is v1.get_variable("W", [2])


def test_reuse_of_an_unknown_name_says_the_nearest():
    with tf.Graph().as_default(), VariableStore().scope():
        v1.get_variable("fc0/W", [2])
        with v1.variable_scope("fc1", reuse=True), pytest.raises(ValueError, match="fc0/W"):
            v1.get_variable("W", [2])


def test_another_shape_under_the_same_name_is_an_error_with_both_shapes():
    store = VariableStore()
    with store.scope():
        v1.get_variable("W", [2])
    with store.scope(), pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        v1.get_variable("W", [3])


def test_a_trainable_variable_that_comes_late_is_an_error_that_names_it():
    store = VariableStore()
    store.complete("the model is complete")
    with store.scope(), pytest.raises(ValueError, match=r"'late'.*the model is complete"):
        v1.get_variable("late", [2])
    with store.scope():
        v1.get_variable("counter", [], trainable=False)


def test_plain_variables_get_a_name_under_the_open_scope():
    store = VariableStore()
    for _ in range(2):
        with store.scope(), v1.variable_scope("a"):
            tf.Variable(1.0, name="v")
            tf.Variable(2.0, name="v")
    assert list(store.variables) == ["a/v", "a/v_1"]


def test_local_variables_are_not_saved():
    store = VariableStore()
    with store.scope():
        v1.get_variable("seen", [], collections=[v1.GraphKeys.LOCAL_VARIABLES])
        v1.get_variable("W", [1])
    assert list(store.saved()) == ["W"]
    assert list(store.trainable()) == ["W"]


def test_a_wrong_name_says_the_nearest():
    store = VariableStore()
    store.make("conv0/W", lambda: tf.zeros([1]), trainable=True)
    with pytest.raises(KeyError, match="conv0/W"):
        store["conv0/w"]


def test_the_global_step_is_one_variable_whatever_scope_asks():
    store = VariableStore()
    with store.scope():
        first = get_global_step_var()
        with v1.variable_scope("inner"):
            assert get_global_step_var() is first
    assert first.dtype == tf.int64
    with pytest.raises(RuntimeError, match="no model is being built"):
        get_global_step_var()


def test_an_unknown_size_is_refused_with_advice():
    with VariableStore().scope(), pytest.raises(ValueError, match="TensorSpec"):
        v1.get_variable("W", [None, 3])


def test_regularizers_and_initializers_of_get_variable_work_in_every_trace():
    store = VariableStore()

    def tower():
        with TowerContext("", is_training=True, store=store) as context:
            v1.get_variable(
                "W",
                [2, 2],
                initializer=v1.constant_initializer(3.0),
                regularizer=lambda w: tf.reduce_sum(w**2, name="penalty"),
            )
            v1.get_variable("counts", [2], tf.int32, trainable=False)
            losses = context.get_collection_in_tower(v1.GraphKeys.REGULARIZATION_LOSSES)
        return tf.add_n(losses)

    for _ in range(2):
        assert float(tf.function(tower, autograph=False)()) == 36
    assert store["counts"].numpy().tolist() == [0, 0]
    with pytest.raises(KeyError, match="global_step"):
        get_global_step_value(store)


@pytest.mark.parametrize("value", [3, True, 3.0, [1, 2], np.zeros(2), np.zeros(2, np.float32)])
def test_a_variable_has_the_dtype_of_its_initial_value_as_in_tensorflow(value):
    with tf.Graph().as_default():
        expected = v1.get_variable("v", initializer=value).dtype
    with VariableStore().scope():
        assert v1.get_variable("v", initializer=value).dtype == expected

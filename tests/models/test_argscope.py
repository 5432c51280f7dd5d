import inspect
import threading

import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf
from towerpack.models import (
    Conv2D,
    argscope,
    enable_argscope_for_function,
    enable_argscope_for_module,
    get_arg_scope,
)


def scaled(x, factor=1, *, shift=0):
    return x * factor + shift


def test_a_function():
    func = enable_argscope_for_function(scaled)
    with argscope(func, factor=3, shift=1):
        assert func(2) == 7
        assert func(2, 5) == 11
        assert func(2, factor=4, shift=0) == 8
    assert func(2) == 2
    assert scaled(2) == 2
    with pytest.raises(TypeError, match="scaled has no argument 'facto'; did you mean factor"):
        with argscope(func, facto=3):
            pass


def test_tf_nn_until_the_end_of_the_block():
    original = tf.nn.leaky_relu
    x = tf.constant([-1.0, 1.0])
    with enable_argscope_for_module(tf.nn):
        with argscope(tf.nn.leaky_relu, alpha=0.5):
            np.testing.assert_allclose(tf.nn.leaky_relu(x), [-0.5, 1])
            np.testing.assert_allclose(tf.nn.leaky_relu(x, 0.25), [-0.25, 1])
        with argscope([tf.nn.conv2d, tf.nn.max_pool2d], padding="SAME"):
            image = tf.ones([1, 4, 4, 1])
            y = tf.nn.conv2d(image, tf.ones([3, 3, 1, 2]), strides=1)
            assert tf.nn.max_pool2d(y, 3, 2).shape == [1, 2, 2, 2]
            assert list(get_arg_scope()) == ["conv2d", "max_pool2d"]
        with enable_argscope_for_module(tf.nn):  # twice is once
            assert not hasattr(tf.nn.leaky_relu.__wrapped__, "argscope_signature")
        assert hasattr(tf.nn.leaky_relu, "argscope_signature")
    assert tf.nn.leaky_relu is original
    with pytest.raises(TypeError, match="enable_argscope_for_module"), argscope(original, alpha=1):
        pass


def test_keras_layers():
    layers = tf.keras.layers

    class Narrow(layers.Dense):
        pass

    with enable_argscope_for_module(layers):
        with argscope(layers.Dense, activation="relu", use_bias=False):
            dense = layers.Dense(3)
            assert dense.activation is tf.keras.activations.relu
            assert not dense.use_bias
            assert layers.Dense(3, "tanh").activation is tf.keras.activations.tanh
            assert isinstance(dense, layers.Dense)
            assert Narrow(3).use_bias
            copy = layers.Dense.from_config(dense.get_config())
            assert not copy.use_bias
        with pytest.raises(TypeError, match="layers registered"), argscope(Narrow, units=1):
            pass
    assert layers.Dense(3).use_bias
    assert "argscope_signature" not in vars(layers.Dense)
    assert "units" in inspect.signature(layers.Dense).parameters


def test_threads_do_not_see_each_others_argscope():
    seen = []
    with argscope(Conv2D, filters=3):
        thread = threading.Thread(target=lambda: seen.append(dict(get_arg_scope())))
        thread.start()
        thread.join()
        assert get_arg_scope() == {"Conv2D": {"filters": 3}}
    assert seen == [{}]


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)


def test_argscope_precedence_and_restoration(image):
    with argscope(Conv2D, filters=4, kernel_size=3):
        with argscope(Conv2D, filters=5):
            inner, _ = build(lambda x: Conv2D("c", x), image)
            by_call, _ = build(lambda x: Conv2D("c", x, filters=6), image)
            by_position, _ = build(lambda x: Conv2D("c", x, 7), image)
        outer, _ = build(lambda x: Conv2D("c", x), image)
    assert [y.shape[-1] for y in (inner, by_call, by_position, outer)] == [5, 6, 7, 4]
    with pytest.raises(RuntimeError, match="inside"), argscope(Conv2D, filters=1):
        raise RuntimeError("inside")
    assert get_arg_scope() == {}


def test_argscope_checks_names_on_entering():
    with pytest.raises(TypeError, match="kernel_siz.*did you mean kernel_size"):
        with argscope(Conv2D, kernel_siz=3):
            pass
    with pytest.raises(TypeError, match="layers registered"), argscope(tf.nn.relu, x=1):
        pass

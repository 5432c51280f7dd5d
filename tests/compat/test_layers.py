import inspect

import numpy as np
import pytest

import towerpack
from tests.models.building import build, gradients
from towerpack import models
from towerpack._tensorflow import tf, v1
from towerpack.compat import layers
from towerpack.compat.layers import (
    BatchNorm,
    Conv2D,
    Deconv2D,
    FullyConnected,
    GroupNorm,
    LayerNorm,
    LinearWrap,
    MaxPooling,
    argscope,
    enable_argscope_for_function,
    enable_argscope_for_module,
)
from towerpack.models import get_arg_scope, layer_register
from towerpack.models.registry import _layers

IMAGE = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)

OLD_NAMES = {
    ("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "SeparableConv2D"): {
        "out_channel": "filters",
        "kernel_shape": "kernel_size",
        "stride": "strides",
        "nl": "activation",
        "W_init": "kernel_initializer",
        "b_init": "bias_initializer",
    },
    ("DepthwiseConv2D",): {"kernel_shape": "kernel_size", "nl": "activation"},
    ("FullyConnected",): {
        "out_dim": "units",
        "nl": "activation",
        "W_init": "kernel_initializer",
        "b_init": "bias_initializer",
    },
    ("MaxPooling", "AvgPooling"): {"shape": "pool_size", "stride": "strides"},
    ("BatchNorm", "BatchRenorm"): {
        "use_local_stat": "training",
        "decay": "momentum",
        "use_bias": "center",
        "use_scale": "scale",
        "gamma_init": "gamma_initializer",
    },
    ("LayerNorm", "InstanceNorm", "GroupNorm"): {
        "use_bias": "center",
        "use_scale": "scale",
        "gamma_init": "gamma_initializer",
    },
    ("Dropout",): {"is_training": "training"},
}


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)


@pytest.mark.parametrize("names", OLD_NAMES, ids=lambda names: names[0])
def test_old_argument_names(names):
    for name in names:
        layer = getattr(layers, name)
        for old, new in OLD_NAMES[names].items():
            with argscope(layer, **{old: 1}):
                assert get_arg_scope() == {name: {new: 1}}
            assert new in inspect.signature(layer).parameters
            with pytest.raises(TypeError, match="twice"):
                layer("it", tf.constant(IMAGE), **{old: 1, new: 1})


def test_the_layers_of_towerpack_refuse_old_names():
    with pytest.raises(TypeError, match="Conv2D has no argument 'out_channel'"):
        models.Conv2D("c", tf.constant(IMAGE), out_channel=1)


def test_both_generations_of_arguments_make_the_same_layer(image):
    old = build(
        lambda x: Conv2D("c", x, out_channel=4, kernel_shape=3, nl=tf.nn.relu, stride=2), image
    )
    new = build(
        lambda x: Conv2D("c", x, filters=4, kernel_size=3, activation=tf.nn.relu, strides=2),
        image,
        store=old[1],
    )
    np.testing.assert_array_equal(old[0], new[0])
    with pytest.raises(TypeError, match="twice"):
        build(lambda x: FullyConnected("f", x, units=1, out_dim=1), image)


@pytest.mark.parametrize("conv", [Conv2D, models.Conv2D])
def test_argscope_takes_both_generations_as_one(conv):
    with argscope([conv, FullyConnected], nl=tf.nn.relu, W_init=None):
        with argscope(conv, activation=tf.nn.tanh):
            shared = {"kernel_initializer": None}
            assert get_arg_scope() == {
                "Conv2D": {"activation": tf.nn.tanh, **shared},
                "FullyConnected": {"activation": tf.nn.relu, **shared},
            }
            assert "tanh" in repr(get_arg_scope())
    assert get_arg_scope() == {}
    with pytest.raises(TypeError, match="twice"):
        with argscope(conv, nl=None, activation=None):
            pass
    with pytest.raises(TypeError, match="MaxPooling has no argument 'nl'"):
        with argscope([conv, MaxPooling], nl=None):
            pass
    assert get_arg_scope() == {}


def test_the_lenet_of_the_notes_as_written():
    image = np.zeros([2, 28, 28, 1], np.float32)

    def lenet(image):
        tf = v1
        with argscope(Conv2D, filters=32, kernel_size=3, activation=tf.nn.relu):
            logits = (
                LinearWrap(image)  # the starting brace is only for line-breaking
                .Conv2D("conv0")
                .MaxPooling("pool0", 2)
                .Conv2D("conv1", padding="SAME")
                .Conv2D("conv2")
                .MaxPooling("pool1", 2)
                .Conv2D("conv3")
                .FullyConnected("fc0", 512, nl=tf.nn.relu)
                .Dropout("dropout", 0.5)
                .FullyConnected("fc1", out_dim=10, nl=tf.identity)()
            )
        return logits

    output, store = build(lenet, image)
    assert output.shape == (2, 10)
    assert list(store.variables)[:2] == ["conv0/W", "conv0/b"]
    assert sum(v.shape.num_elements() for v in store.trainable().values()) == 836_522


def test_norms_in_old_scripts():
    arguments = {"use_bias": False, "use_scale": True, "gamma_init": v1.constant_initializer(2.0)}
    for layer in (BatchNorm, LayerNorm, lambda *a, **k: GroupNorm(*a, group=2, **k)):
        _, store = build(lambda x, layer=layer: layer("n", x, **arguments), IMAGE)
        assert list(store.trainable()) == ["n/gamma"]
        np.testing.assert_array_equal(store["n/gamma"], [2, 2, 2, 2])


def test_deconv_is_conv_transpose_with_old_names():
    assert towerpack.Deconv2D is Deconv2D is layers.Conv2DTranspose
    output, store = build(
        lambda x: LinearWrap(x).Conv2DTranspose("d", out_channel=3, kernel_shape=3, stride=2)(),
        IMAGE,
    )
    assert output.shape == (2, 8, 12, 3)
    assert store["d/W"].shape == (3, 3, 3, 4)
    assert "Deconv2D" in dir(LinearWrap(tf.constant(IMAGE)))
    assert build(lambda x: LinearWrap(x).Deconv2D("d", 3, 3, 2)(), IMAGE)[0].shape == output.shape
    assert build(lambda x: Deconv2D("d", x, 3, 3, stride=2), IMAGE)[0].shape == output.shape


def test_a_chain_keeps_old_names_after_other_functions():
    def tower(x):
        chain = LinearWrap(x).tf.nn.relu().apply(tf.identity).ConcatWith(x, 3)
        return chain.FullyConnected("fc", out_dim=5)()

    assert build(tower, IMAGE)[0].shape == (2, 5)


def test_a_layer_of_the_script_keeps_its_own_arguments():
    before = {name: list(found) for name, found in _layers.items()}
    try:

        @layer_register()
        def FullyConnected(x, nl):
            return x * nl

        output, _ = build(lambda x: LinearWrap(x).FullyConnected("f", nl=3.0)(), IMAGE)
    finally:
        _layers.clear()
        _layers.update(before)
    np.testing.assert_array_equal(output, 3 * IMAGE)


@pytest.mark.parametrize("argument", ["use_local_stat", "training"])
def test_frozen_batch_norm(argument):
    _, store = build(lambda x: BatchNorm("bn", x), IMAGE, is_training=False)
    store["bn/mean/EMA"].assign([1.0, 2.0, 3.0, 4.0])
    output, dx, _ = gradients(
        lambda x: BatchNorm("bn", x, **{argument: False}), IMAGE, np.ones_like(IMAGE), store
    )
    np.testing.assert_allclose(output, (IMAGE - [1, 2, 3, 4]) / np.sqrt(1 + 1e-5), rtol=1e-4)
    np.testing.assert_allclose(dx, np.full_like(IMAGE, 1 / np.sqrt(1 + 1e-5)), rtol=1e-4)
    np.testing.assert_array_equal(store["bn/mean/EMA"], [1, 2, 3, 4])


def test_names_of_ways_to_synchronize_batch_norm():
    for way in (None, "nccl", "horovod"):
        output, _ = build(lambda x, way=way: BatchNorm("bn", x, sync_statistics=way), IMAGE)
        np.testing.assert_allclose(output.mean((0, 1, 2)), 0, atol=1e-5)


def test_argscope_for_functions_takes_log_shape():
    def scaled(x, factor=1):
        return x * factor

    func = enable_argscope_for_function(scaled, log_shape=False)
    with argscope(func, factor=3):
        assert func(2) == 6
    original = tf.nn.leaky_relu
    with enable_argscope_for_module(tf.nn, log_shape=False):
        with argscope(tf.nn.leaky_relu, alpha=0.5):
            np.testing.assert_allclose(tf.nn.leaky_relu(tf.constant([-1.0])), [-0.5])
    assert tf.nn.leaky_relu is original


def test_the_old_name_of_the_context():
    assert towerpack.BaseTowerContext is towerpack.TowerContext


def test_pooling_in_old_scripts():
    output, _ = build(lambda x: MaxPooling("p", x, shape=3, stride=2, padding="SAME"), IMAGE)
    assert output.shape == (2, 2, 3, 4)

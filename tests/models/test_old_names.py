import inspect

import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf, v1
from towerpack.models import (
    BatchNorm,
    Conv2D,
    Conv2DTranspose,
    Deconv2D,
    FullyConnected,
    GroupNorm,
    LayerNorm,
    LinearWrap,
    MaxPooling,
    argscope,
    get_arg_scope,
)
from towerpack.models.registry import get_registered_layer

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
        layer = get_registered_layer(name)
        for old, new in OLD_NAMES[names].items():
            assert layer.argscope_signature.checked({old: 1}) == {new: 1}
            assert new in inspect.signature(layer).parameters
            with pytest.raises(TypeError, match="the same argument, give one"):
                layer.argscope_signature.checked({old: 1, new: 1})


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
    with pytest.raises(TypeError, match="the same argument"):
        build(lambda x: FullyConnected("f", x, units=1, out_dim=1), image)


def test_argscope_speaks_both_generations_as_one():
    with argscope(Conv2D, nl=tf.nn.relu, out_channel=3):
        with argscope(Conv2D, activation=tf.nn.tanh):
            assert get_arg_scope() == {"Conv2D": {"activation": tf.nn.tanh, "filters": 3}}
            assert "tanh" in repr(get_arg_scope())
    with pytest.raises(TypeError, match="the same argument"):
        with argscope(Conv2D, nl=None, activation=None):
            pass


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
    assert Deconv2D is Conv2DTranspose
    output, store = build(
        lambda x: LinearWrap(x).Conv2DTranspose("d", out_channel=3, kernel_shape=3, stride=2)(),
        IMAGE,
    )
    assert output.shape == (2, 8, 12, 3)
    assert store["d/W"].shape == (3, 3, 3, 4)
    assert build(lambda x: LinearWrap(x).Deconv2D("d", 3, 3, 2)(), IMAGE)[0].shape == output.shape


def test_pooling_in_old_scripts():
    output, _ = build(lambda x: MaxPooling("p", x, shape=3, stride=2, padding="SAME"), IMAGE)
    assert output.shape == (2, 2, 3, 4)

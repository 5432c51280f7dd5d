import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf, v1
from towerpack.models import (
    AvgPooling,
    Conv2D,
    Dropout,
    FullyConnected,
    GlobalAvgPooling,
    LinearWrap,
    MaxPooling,
    argscope,
    get_arg_scope,
    layer_register,
)


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)


def test_conv2d_agrees_with_keras(image):
    output, store = build(lambda x: Conv2D("c", x, 4, 3, strides=2, activation=tf.nn.relu), image)
    layer = tf.keras.layers.Conv2D(4, 3, 2, "same", activation="relu")
    layer.build(image.shape)
    layer.set_weights([store["c/W"].numpy(), store["c/b"].numpy()])
    np.testing.assert_allclose(output, layer(image), atol=1e-5)


def test_grouped_conv2d_agrees_with_its_parts(image):
    image = np.concatenate([image, image], axis=3)
    output, store = build(lambda x: Conv2D("c", x, 4, 3, split=2, use_bias=False), image)
    weights = store["c/W"].numpy()
    assert weights.shape == (3, 3, 3, 4)
    parts = [
        tf.nn.conv2d(image[..., 3 * i : 3 * i + 3], weights[..., 2 * i : 2 * i + 2], 1, "SAME")
        for i in range(2)
    ]
    np.testing.assert_allclose(output, np.concatenate(parts, 3), atol=1e-5)


def test_fully_connected_flattens(image):
    output, store = build(lambda x: FullyConnected("f", x, 5), image)
    expected = image.reshape(2, -1) @ store["f/W"].numpy() + store["f/b"].numpy()
    np.testing.assert_allclose(output, expected, atol=1e-4)


def test_pooling(image):
    windows = image.reshape(2, 3, 2, 4, 2, 3)
    np.testing.assert_allclose(
        build(lambda x: MaxPooling("p", x, 2), image)[0], windows.max((2, 4))
    )
    np.testing.assert_allclose(
        build(lambda x: AvgPooling("p", x, 2), image)[0], windows.mean((2, 4)), atol=1e-6
    )
    np.testing.assert_allclose(
        build(lambda x: GlobalAvgPooling("p", x), image)[0], image.mean((1, 2)), atol=1e-6
    )


def test_dropout_position_is_keep_and_rate_is_drop():
    ones = np.ones([100, 100], np.float32)
    kept, _ = build(lambda x: Dropout("d", x, 0.9), ones)
    assert 0.85 < (kept != 0).mean() < 0.95
    np.testing.assert_allclose(kept[kept != 0], 1 / 0.9, rtol=1e-6)
    dropped, _ = build(lambda x: Dropout(x, rate=0.9), ones)
    assert 0.05 < (dropped != 0).mean() < 0.15
    same, _ = build(lambda x: Dropout("d", x, 0.5), ones, is_training=False)
    np.testing.assert_array_equal(same, ones)


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


def test_output_name_and_variables(image):
    names = {}

    def tower(x):
        y = Conv2D("c", x, 4, 3)
        names["output"], names["W"] = y.name, y.variables.W
        assert len(y.variables.all()) == 2
        return y

    _, store = build(tower, image)
    assert names["output"] == "c/output:0"
    assert names["W"] is store["c/W"]


def test_a_users_own_layer_joins_the_chain(image):
    @layer_register(log_shape=True)
    def ScaleForTest(x, *, init=1.0):
        return x * v1.get_variable("k", initializer=init)

    output, store = build(lambda x: LinearWrap(x).ScaleForTest("s", init=2.0)(), image)
    np.testing.assert_allclose(output, 2 * image)
    assert list(store.variables) == ["s/k"]


def test_linearwrap_reaches_tensorflow_and_functions(image):
    output, _ = build(
        lambda x: LinearWrap(x).tf.nn.relu().apply(tf.add, 1.0).apply2(tf.subtract, 5.0)(), image
    )
    np.testing.assert_allclose(output, 5 - (np.maximum(image, 0) + 1), rtol=1e-6)


def test_linearwrap_shows_itself(image, capsys):
    chain = LinearWrap(tf.constant(image))
    assert {"Conv2D", "Deconv2D", "apply", "tf"} <= set(dir(chain))
    assert repr(chain).startswith("LinearWrap(<tf.Tensor: shape=(2, 6, 8, 3)")
    assert chain.print_tensor() is chain
    assert "shape=(2, 6, 8, 3)" in capsys.readouterr().out
    assert chain.tensor() is chain()
    with pytest.raises(AttributeError, match="tf.nn has no 'rely'; did you mean"):
        chain.tf.nn.rely()


def test_messages_of_a_new_users_mistakes(image):
    with pytest.raises(AttributeError, match="'Conv2d'; did you mean Conv2D"):
        LinearWrap(tf.constant(image)).Conv2d("c")
    with pytest.raises(
        TypeError, match="FullyConnected has no argument 'unit'; did you mean units"
    ):
        build(lambda x: FullyConnected("f", x, unit=3), image)
    with pytest.raises(TypeError, match="needs a name first"):
        build(lambda x: Conv2D(x, 4, 3), image)
    with pytest.raises(TypeError, match="needs a tensor"):
        build(lambda x: Conv2D("c", "d", 3), image)
    with pytest.raises(ValueError, match="expected a 4-D input") as caught:
        build(lambda x: Conv2D("conv7", x, 4, 3), image[:, 0])
    assert any("conv7" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match="'c/W' is made twice"):
        build(lambda x: Conv2D("c", Conv2D("c", x, 3, 3), 3, 3), image)

import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf, v1
from towerpack.models import (
    ConcatWith,
    LinearWrap,
    layer_register,
)

IMAGE = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)


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
    assert {"Conv2D", "apply", "tf"} <= set(dir(chain))
    assert repr(chain).startswith("LinearWrap(<tf.Tensor: shape=(2, 6, 8, 3)")
    assert chain.print_tensor() is chain
    assert "shape=(2, 6, 8, 3)" in capsys.readouterr().out
    assert chain.tensor() is chain()
    with pytest.raises(AttributeError, match="tf.nn has no 'rely'; did you mean"):
        chain.tf.nn.rely()


def test_concat_with_a_tensor_and_a_list():
    one, _ = build(lambda x: LinearWrap(x).ConcatWith(2 * x, 3)(), IMAGE)
    np.testing.assert_array_equal(one, np.concatenate([IMAGE, 2 * IMAGE], 3))
    two, _ = build(lambda x: ConcatWith(x, [2 * x, 3 * x], dim=1), IMAGE)
    np.testing.assert_array_equal(two, np.concatenate([IMAGE, 2 * IMAGE, 3 * IMAGE], 1))

import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf, v1
from towerpack.models import (
    Conv2D,
    FullyConnected,
    GroupNorm,
    LinearWrap,
    get_registered_layer,
    layer_register,
)
from towerpack.models.registry import _layers

X = np.ones([2, 4], np.float32)


@pytest.fixture(autouse=True)
def _registry_as_it_was():
    before = {name: list(layers) for name, layers in _layers.items()}
    yield
    _layers.clear()
    _layers.update(before)


def registered(name, module, result):
    def func(x):
        return x * result

    func.__name__, func.__module__ = name, module
    return layer_register()(func)


def test_a_script_may_define_a_layer_that_towerpack_has():
    own = registered("GroupNorm", "__main__", 3.0)
    assert get_registered_layer("GroupNorm") is own
    np.testing.assert_array_equal(build(lambda x: LinearWrap(x).GroupNorm("g")(), X)[0], 3 * X)
    assert build(lambda x: GroupNorm("g", x, 2), X)[0].shape == (2, 4)


def test_a_cell_that_runs_again_replaces_its_layer():
    registered("Mine", "__main__", 1.0)
    again = registered("Mine", "__main__", 2.0)
    assert get_registered_layer("Mine") is again


def test_two_modules_with_one_name_are_an_error_on_use():
    registered("Mine", "first_module", 1.0)
    second = registered("Mine", "second_module", 2.0)
    np.testing.assert_array_equal(build(lambda x: second("g", x), X)[0], 2 * X)
    with pytest.raises(ValueError, match="first_module.*second_module"):
        LinearWrap(tf.constant(X)).Mine("g")


def test_tf_is_reserved():
    with pytest.raises(ValueError, match="'tf'"):
        registered("tf", "__main__", 1.0)


def test_use_scope_false_takes_no_name():
    @layer_register(use_scope=False)
    def Doubled(x):
        return 2 * x

    np.testing.assert_array_equal(build(lambda x: Doubled(x), X)[0], 2 * X)
    with pytest.raises(TypeError, match="needs a tensor"):
        build(lambda x: Doubled("name", x), X)


def test_missing_arguments_are_named_with_the_way_out():
    with pytest.raises(TypeError, match=r"Conv2D needs filters and kernel_size.*argscope\(Conv2D"):
        build(lambda x: Conv2D("c", x), np.ones([1, 4, 4, 1], np.float32))


def test_too_many_positions():
    with pytest.raises(TypeError, match="at most 1 positional.*units.*received 2"):
        build(lambda x: FullyConnected("f", x, 3, tf.nn.relu), X)


def test_an_activation_that_is_no_function():
    with pytest.raises(TypeError, match="such as tf.nn.relu as activation, received 'relu'"):
        build(lambda x: FullyConnected("f", x, 3, activation="relu"), X)


def test_shared_on_purpose():
    def tower(x):
        with v1.variable_scope("shared", reuse=v1.AUTO_REUSE):
            first = FullyConnected("f", x, 4)
        with v1.variable_scope("shared", reuse=v1.AUTO_REUSE):
            return FullyConnected("f", first, 4)

    _, store = build(tower, X)
    assert list(store.variables) == ["shared/f/W", "shared/f/b"]


def test_a_failing_layer_leaves_no_trace_behind():
    def tower(x):
        with pytest.raises(ValueError, match="4-D"):
            Conv2D("bad", x, 3, 3)
        return FullyConnected("good", x, 3).name

    names = []
    build(lambda x: names.append(tower(x)) or x, X)
    assert set(names) == {"good/output:0"}


def test_outputs_in_a_tuple_are_named_too():
    names = []

    @layer_register()
    def Halves(x):
        return tuple(tf.split(x, 2, 1))

    build(lambda x: names.extend(y.name for y in Halves("h", x)) or x, X)
    assert set(names) == {"h/output:0", "h/output_1:0"}


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)


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

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_arrays
from towerpack._tensorflow import tf
from towerpack.tower import (
    TowerContext,
    TowerFunc,
    TracedTower,
    VariableStore,
    add_moving_summary,
    get_current_tower_context,
)


def signature(*names):
    return [tf.TensorSpec([None, 2], tf.float32, name) for name in names]


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a:0", None])
def test_input_names_are_checked(name):
    with pytest.raises(ValueError, match="expected a name"):
        TowerFunc(lambda x: x, signature(name))


def test_doubled_input_names_are_refused():
    with pytest.raises(ValueError, match=r"\['x'\] twice"):
        TowerFunc(lambda x, y: x, signature("x", "x"))


def test_a_tower_function_needs_a_context():
    with pytest.raises(RuntimeError, match="TowerContext"):
        TowerFunc(lambda x: x, signature("x"))(tf.zeros([1, 2]))


def test_contexts_do_not_nest_and_are_left_on_error():
    store = VariableStore()
    with pytest.raises(RuntimeError, match="do not nest"):
        with TowerContext("", True, store=store), TowerContext("b", True, store=store):
            pass
    assert get_current_tower_context() is None


def test_tensors_by_name_and_inputs_by_their_own():
    x, label = tiny_arrays()
    store = VariableStore()
    tower = TracedTower(TinyModel().tower_func(), store)
    prob, same = tower.function(["x"], ["prob", "x"])(x)
    np.testing.assert_array_equal(same, x)
    logits = x @ store["fc/W"].numpy() + store["fc/b"].numpy()
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(prob, expected, rtol=1e-5)
    (wrong,) = tower.function(None, ["incorrect_vector"])(x, label)
    np.testing.assert_array_equal(wrong, logits.argmax(1) != label)


def test_B3_a_wrong_tensor_name_is_refused_when_built_with_the_nearest():
    tower = TracedTower(TinyModel().tower_func(), VariableStore())
    with pytest.raises(KeyError, match=r"'probs'.*nearest are \['prob'"):
        tower.function(["x"], ["probs"])
    with pytest.raises(KeyError, match=r"\['y'\].*\['x', 'label'\]"):
        tower.function(["y"], ["prob"])


def test_an_input_that_the_outputs_need_is_named():
    tower = TracedTower(TinyModel().tower_func(), VariableStore())
    with pytest.raises(ValueError, match=r"\['cost'\] depend on, received \['x'\].*\['label'\]"):
        tower.function(["x"], ["cost"])


def test_a_fetch_runs_no_side_effect_of_the_tower():
    counter = tf.Variable(0)

    def build(x):
        counter.assign_add(1)
        return tf.identity(x, name="y")

    tower = TracedTower(TowerFunc(build, signature("x")), VariableStore())
    tower.function(["x"], ["y"])(np.zeros([1, 2], np.float32))
    assert int(counter) == 0


def test_a_call_does_not_print_its_inputs():
    """TensorFlow would, into the message of an error that it catches itself: slow."""
    tower = TracedTower(TinyModel().tower_func(), VariableStore(), name="tower1")
    predict = tower.function(["x"], ["prob"])

    def refuse(value):
        raise AssertionError(f"printed {value}")

    x, _ = tiny_arrays()
    with np.printoptions(formatter={"all": refuse}):
        predict(x)


def test_an_input_of_another_shape_is_refused():
    tower = TracedTower(TinyModel().tower_func(), VariableStore())
    predict = tower.function(["x"], ["prob"])
    with pytest.raises(ValueError, match=r"expected 'x' of shape \(None, \d+\), received \(3,\)"):
        predict(np.zeros(3, np.float32))


def test_names_carry_no_tower_prefix():
    tower = TracedTower(TinyModel().tower_func(), VariableStore(), name="tower1")
    assert tower.handle.get_tensor("prob").name == "tower1/prob:0"


def test_moving_summaries_take_scalars_one_by_one():
    def build(x):
        add_moving_summary([tf.reduce_sum(x)])

    with pytest.raises(TypeError, match="expected each argument to be a tensor"):
        trace_training(build)
    with pytest.raises(ValueError, match="expected a scalar"):
        trace_training(lambda x: add_moving_summary(x))


def trace_training(build):
    tower_func = TowerFunc(build, signature("x"))

    def step(x):
        with TowerContext("", is_training=True, store=VariableStore()):
            tower_func(x)

    tf.function(step, autograph=False)(tf.zeros([1, 2]))

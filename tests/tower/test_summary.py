import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.models import FullyConnected
from towerpack.tower import (
    TowerContext,
    TowerFunc,
    VariableStore,
    add_activation_summary,
    add_image_summary,
    add_moving_summary,
    add_param_summary,
    add_tensor_summary,
)
from towerpack.tower.summary import collect_summaries, update_moving_averages

X = np.array([[0.0, 3.0], [0.0, 4.0]], np.float32)


def summaries(build, **options):
    """What a tower function's summaries come to in one step."""
    tower = TowerFunc(build, [tf.TensorSpec([None, 2], tf.float32, "x")])
    options = {"is_training": True, "store": VariableStore(), **options}

    @tf.function(autograph=False)
    def step(x):
        with TowerContext("", **options) as context:
            tower(x)
        return collect_summaries(context)

    found = tf.nest.map_structure(lambda t: t.numpy(), step(X))
    return {kind: values for kind, values in found.items() if values}


def test_types_of_a_tensor():
    found = summaries(
        lambda x: add_tensor_summary(x, ["mean", "rms", "sparsity", "histogram"], name="acts")
    )
    assert found["scalar"] == {
        "acts-mean": pytest.approx(1.75),
        "acts-rms": pytest.approx(2.5),
        "acts-sparsity": pytest.approx(0.5),
    }
    np.testing.assert_array_equal(found["histogram"]["acts"], X)


def test_an_activation_goes_by_its_own_name():
    found = summaries(lambda x: add_activation_summary(tf.identity(x, name="relu0"), ["rms"]))
    assert list(found["scalar"]) == ["relu0-rms"]


def test_parameters_by_pattern_also_those_made_later():
    def build(x):
        add_param_summary((".*/W", ["histogram", "rms"]))
        FullyConnected("fc", x, 3)

    found = summaries(build)
    assert list(found["histogram"]) == ["param-summary/fc/W"]
    assert list(found["scalar"]) == ["param-summary/fc/W-rms"]


def test_images():
    found = summaries(
        lambda x: add_image_summary("pictures", tf.reshape(x, [2, 1, 2, 1]), max_images=1)
    )
    assert found["image"]["pictures"].shape == (1, 1, 2, 1)


def test_only_the_main_training_tower_counts():
    def build(x):
        add_tensor_summary(x, ["mean"])
        add_moving_summary(tf.reduce_sum(x))

    assert summaries(build, is_training=False) == {}
    assert summaries(build, index=1) == {}


def test_wrong_types_are_refused():
    with pytest.raises(ValueError, match="received 'median'"):
        summaries(lambda x: add_tensor_summary(x, ["median"]))
    with pytest.raises(RuntimeError, match="inside a tower"):
        add_tensor_summary(tf.zeros([]), ["scalar"])


def test_a_moving_average_is_debiased():
    store = VariableStore()
    tower = TowerFunc(
        lambda x: add_moving_summary(tf.reduce_sum(x, name="total"), decay=0.9),
        [tf.TensorSpec([None, 2], tf.float32, "x")],
    )
    averages = {}

    @tf.function(autograph=False)
    def step(x):
        with TowerContext("", is_training=True, store=store) as context:
            tower(x)
        averages.update(update_moving_averages(context))

    step(X)
    assert averages["total"].value() == pytest.approx(7.0)
    step(2 * X)
    assert averages["total"].value() == pytest.approx((0.9 * 0.1 * 7 + 0.1 * 14) / 0.19)
    assert store.saved() == {}

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.tower import VariableStore
from towerpack.tower.gradproc import (
    CheckGradient,
    FilterNoneGrad,
    GlobalNormClip,
    MapGradient,
    PrintGradient,
    ScaleGradient,
)
from towerpack.tower.optimizer import SGD, apply_grad_processors

GRADIENTS = {"conv0/W": [3.0, 0.0], "conv0/b": [4.0], "fc/W": [0.0]}


@pytest.fixture
def store():
    store = VariableStore()
    for name, value in GRADIENTS.items():
        store.make(name, lambda value=value: tf.zeros(len(value)), trainable=True)
    return store


def process(store, processor, gradients=GRADIENTS):
    """The processed gradients by name."""
    with store.scope():
        pairs = [
            (None if value is None else tf.constant(value), store[name])
            for name, value in gradients.items()
        ]
        return {store.name_of(v): np.asarray(g).tolist() for g, v in processor.process(pairs)}


def test_the_global_norm_is_clipped_for_all_together(store):
    clipped = process(store, GlobalNormClip(1.0))
    assert clipped["conv0/W"] == pytest.approx([0.6, 0.0])
    assert clipped["conv0/b"] == pytest.approx([0.8])
    assert process(store, GlobalNormClip(10.0)) == GRADIENTS


def test_a_map_acts_where_the_whole_name_matches_and_none_drops(store):
    mapped = process(store, MapGradient(lambda g: g * 2, "conv0/.*"))
    assert mapped == {"conv0/W": [6.0, 0.0], "conv0/b": [8.0], "fc/W": [0.0]}
    assert process(store, MapGradient(lambda g: g * 2, "conv0")) == GRADIENTS
    by_variable = MapGradient(lambda g, v: None if v.shape[0] == 1 else g)
    assert list(process(store, by_variable)) == ["conv0/W"]


def test_the_first_matching_factor_counts_and_zero_drops(store):
    scaled = process(store, ScaleGradient([("conv0/W", 10), ("conv0/.*", 0)]))
    assert scaled == {"conv0/W": [30.0, 0.0], "fc/W": [0.0]}
    assert process(store, ScaleGradient(("fc/W", 5)))["conv0/b"] == [4.0]
    with pytest.raises(ValueError, match="left no variable"):
        process(store, ScaleGradient((".*", 0)))


def test_variables_without_gradient_are_filtered(store):
    assert list(process(store, FilterNoneGrad(), {**GRADIENTS, "fc/W": None})) == [
        "conv0/W",
        "conv0/b",
    ]


def test_F14_a_gradient_that_is_not_finite_is_named(store):
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient of conv0/b"):
        process(store, CheckGradient(), {**GRADIENTS, "conv0/b": [np.nan]})


def test_printing_changes_nothing(store, capfd):
    assert process(store, PrintGradient("conv0/W")) == GRADIENTS
    assert "gradient of conv0/W mean 1.5 norm 3" in capfd.readouterr().err


def test_processors_run_in_order_before_the_optimizer(store):
    optimizer = apply_grad_processors(SGD(1.0), [MapGradient(lambda g: g + 1), GlobalNormClip(1e9)])
    with store.scope():
        optimizer.apply_gradients([(tf.constant([1.0]), store["fc/W"])])
    assert store["fc/W"].numpy() == [-2.0]
    with pytest.raises(TypeError, match="expected gradient processors"):
        apply_grad_processors(SGD(1.0), [lambda g: g])

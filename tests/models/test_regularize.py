import numpy as np
import pytest

from tests.models.building import build
from towerpack.models import (
    Conv2D,
    FullyConnected,
    l1_regularizer,
    l2_regularizer,
    regularize_cost,
    regularize_cost_from_collection,
)

X = np.ones([2, 3], np.float32)


def two_layers(x):
    return FullyConnected("fc1", FullyConnected("fc0", x, 4), 2)


def test_l1_and_l2():
    weights = np.array([1.0, -2.0, 3.0], np.float32)
    assert float(l2_regularizer(0.5)(weights)) == pytest.approx(0.5 * 7)
    assert float(l1_regularizer(0.5)(weights)) == pytest.approx(0.5 * 6)
    assert l2_regularizer(1.0)(weights.astype(np.float16)).dtype.name == "float32"


def test_regularize_cost_by_name():
    def tower(x):
        two_layers(x)
        return regularize_cost("fc1/W", l2_regularizer(2.0)), regularize_cost(
            "fc.*/W", l1_regularizer(1.0), name="l1"
        )

    (one, both), store = build(tower, X)
    w0, w1 = store["fc0/W"].numpy(), store["fc1/W"].numpy()
    np.testing.assert_allclose(one, np.sum(w1**2), rtol=1e-5)
    np.testing.assert_allclose(both, np.abs(w0).sum() + np.abs(w1).sum(), rtol=1e-5)
    assert build(tower, X, is_training=False, store=store)[0] == (0, 0)


def test_a_pattern_without_variables_is_said_and_costs_nothing(capsys):
    def tower(x):
        two_layers(x)
        return regularize_cost("fc9/W", l2_regularizer())

    cost, _ = build(tower, X)
    assert cost == 0
    said = capsys.readouterr().err
    assert said.count("no trainable variable's name contains 'fc9/W'; there are ['fc0/W'") == 1


def test_from_collection_in_every_trace():
    image = np.ones([2, 4, 4, 3], np.float32)

    def tower(x):
        Conv2D("c", x, 2, 3, kernel_regularizer=l2_regularizer(2.0))
        Conv2D("d", x, 2, 3, kernel_regularizer=l2_regularizer(2.0), use_bias=False)
        return regularize_cost_from_collection()

    cost, store = build(tower, image)
    expected = sum(np.sum(store[f"{name}/W"].numpy() ** 2) for name in "cd")
    np.testing.assert_allclose(cost, expected, rtol=1e-5)
    np.testing.assert_allclose(build(tower, image, store=store)[0], expected, rtol=1e-5)
    assert build(tower, image, store=store, is_training=False)[0] == 0


def test_nothing_in_the_collection():
    assert build(lambda x: regularize_cost_from_collection(), X)[0] == 0


def test_outside_of_a_tower_is_an_error():
    with pytest.raises(RuntimeError, match="while a tower is being built"):
        regularize_cost(".*", l2_regularizer())

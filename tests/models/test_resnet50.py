"""A network of real size: ResNet-50 in towerpack's layers, against Keras' with the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf
from towerpack.models import (
    BatchNorm,
    Conv2D,
    LinearWrap,
    MaxPooling,
    argscope,
    model_summary,
)
from towerpack.tower import TowerFunc, TracedTower, VariableStore

SIZE = 64
KERAS_NAMES = {
    "kernel": "W",
    "bias": "b",
    "moving_mean": "mean/EMA",
    "moving_variance": "variance/EMA",
}


def conv_bn(name, x, filters, size, strides=1):
    return BatchNorm(f"{name}_bn", Conv2D(f"{name}_conv", x, filters, size, strides=strides))


def bottleneck(name, x, filters, strides, widen):
    shortcut = conv_bn(f"{name}_0", x, 4 * filters, 1, strides) if widen else x
    x = tf.nn.relu(conv_bn(f"{name}_1", x, filters, 1, strides))
    x = tf.nn.relu(conv_bn(f"{name}_2", x, filters, 3))
    return tf.nn.relu(shortcut + conv_bn(f"{name}_3", x, 4 * filters, 1))


def resnet50(image):
    with argscope(BatchNorm, epsilon=1.001e-5), argscope(Conv2D, padding="same"):
        x = tf.pad(image, [[0, 0], [3, 3], [3, 3], [0, 0]])
        x = Conv2D("conv1_conv", x, 64, 7, strides=2, padding="valid")
        x = tf.nn.relu(BatchNorm("conv1_bn", x))
        x = MaxPooling("pool1_pool", tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2)
        for stage, (filters, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], 2):
            for block in range(1, blocks + 1):
                strides = 2 if block == 1 and stage > 2 else 1
                name = f"conv{stage}_block{block}"
                x = bottleneck(name, x, filters, strides, widen=block == 1)
        return LinearWrap(x).GlobalAvgPooling("avg_pool").FullyConnected("predictions", 1000)()


@pytest.mark.slow
def test_resnet50_equals_keras():
    image = np.random.default_rng(0).normal(size=(2, SIZE, SIZE, 3)).astype(np.float32)
    theirs = tf.keras.applications.ResNet50(
        weights=None, input_shape=(SIZE, SIZE, 3), classifier_activation=None
    )
    calls = []

    def tower(image):
        calls.append(image)
        return tf.identity(resnet50(image), name="logits")

    store = VariableStore()
    specs = [tf.TensorSpec([None, None, None, 3], tf.float32, "image")]
    predict = TracedTower(TowerFunc(tower, specs), store).function(["image"], ["logits"])
    assert len(calls) == 1
    sizes = [variable.shape.num_elements() for variable in store.variables.values()]
    assert sum(sizes) == theirs.count_params() == 25_636_712

    generator = np.random.default_rng(1)
    for weight in theirs.weights:
        layer, _, kind = weight.path.rpartition("/")
        if kind in ("gamma", "moving_variance"):
            weight.assign(generator.uniform(0.5, 1, weight.shape))
        elif kind != "kernel":
            weight.assign(generator.normal(0, 0.1, weight.shape))
        store[f"{layer}/{KERAS_NAMES.get(kind, kind)}"].assign(weight.value)
    (output,) = predict(image)
    expected = theirs(image, training=False)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(output / scale, expected / scale, atol=1e-4)


@pytest.mark.slow
def test_resnet50_in_training_has_its_table():
    image = np.zeros([1, 32, 32, 3], np.float32)
    output, _ = build(resnet50, image)
    assert output.shape == (1, 1000)
    assert np.isfinite(output).all()
    table = model_summary(resnet50, [tf.TensorSpec([None, 224, 224, 3], name="image")])
    assert (
        len(table.rows) == 2 * 53 + 1 + 1 + 1 + 1
    )  # convolutions, norms; the additions and activations between layers

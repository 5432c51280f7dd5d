"""A small convolutional model, with everything that exports must get right, for these tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.models import BatchNorm, Conv2D, Dropout, FullyConnected, MaxPooling, ModelDesc
from towerpack.predict import PredictConfig
from towerpack.tower import TracedTower, VariableStore

SIZE, CLASSES = 8, 3


class SmallNet(ModelDesc):
    """Convolution, batch normalization, dropout, two heads: one for the labels is not exported."""

    def inputs(self) -> list[Any]:
        return [
            tf.TensorSpec([None, SIZE, SIZE, 1], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image: Any, label: Any) -> Any:
        x = Conv2D("conv", image, 4, 3, activation=tf.nn.relu)
        x = BatchNorm("bn", x)
        x = MaxPooling("pool", x, 2)
        logits = FullyConnected("fc", Dropout("dropout", x, rate=0.5), CLASSES)
        tf.nn.softmax(logits, name="prob")
        tf.argmax(logits, axis=1, output_type=tf.int32, name="class")
        FullyConnected("auxiliary", x, 2)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(loss, name="cost")

    def optimizer(self) -> Any:
        return v1.train.AdamOptimizer(1e-2)


def small_weights() -> dict[str, np.ndarray]:
    """Values for all variables, as a checkpoint holds them: with an optimizer's, and averages."""
    store = VariableStore()
    TracedTower(SmallNet().tower_func(), store)
    rng = np.random.default_rng(5)
    values = {}
    for name, variable in store.saved().items():
        value = rng.normal(scale=0.5, size=variable.shape).astype(np.float32)
        values[name] = np.abs(value) + 0.5 if "variance" in name else value
        values[f"{name}/Adam"] = value
        values[f"{name}/ExponentialMovingAverage"] = values[name] * 0.5
    return {**values, "global_step": np.int64(7), "beta1_power": np.float32(0.5)}


def small_config(**options: Any) -> PredictConfig:
    options = {"input_names": ["image"], "output_names": ["prob"], **options}
    options.setdefault("session_init", small_weights())
    if "tower_func" not in options:
        options["model"] = SmallNet()
    return PredictConfig(**options)


def small_images(count: int = 6) -> np.ndarray:
    return np.random.default_rng(6).random((count, SIZE, SIZE, 1)).astype(np.float32)

"""A model that trains in milliseconds, shared by the tests of the TensorFlow rooms."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.models import FullyConnected, ModelDesc
from towerpack.tower import add_moving_summary

FEATURES, CLASSES, SAMPLES, BATCH = 4, 3, 60, 10


class TinyModel(ModelDesc):
    """Softmax regression; `calls` counts how often the tower function ran."""

    def __init__(self) -> None:
        self.calls = 0

    def inputs(self) -> list[Any]:
        return [
            tf.TensorSpec([None, FEATURES], tf.float32, "x"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, x: Any, label: Any) -> Any:
        self.calls += 1
        logits = FullyConnected("fc", x, CLASSES)
        tf.nn.softmax(logits, name="prob")
        wrong = tf.not_equal(tf.argmax(logits, 1, output_type=tf.int32), label)
        tf.cast(wrong, tf.float32, name="incorrect_vector")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        cost = tf.reduce_mean(loss, name="cost")
        add_moving_summary(cost)
        return cost

    def optimizer(self) -> Any:
        return v1.train.GradientDescentOptimizer(0.5)


def tiny_arrays() -> tuple[np.ndarray, np.ndarray]:
    """Samples whose class is the largest of their first features: easy to learn."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return x, x[:, :CLASSES].argmax(axis=1).astype(np.int32)


def tiny_flow(shuffle: bool = True) -> BatchData:
    return BatchData(DataFromArrays(*tiny_arrays(), shuffle=shuffle), BATCH)

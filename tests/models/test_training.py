"""Layers in a real training run: they learn, and their state reaches inference."""

from __future__ import annotations

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.models import (
    BatchNorm,
    BNReLU,
    Conv2D,
    LinearWrap,
    ModelDesc,
    argscope,
    l2_regularizer,
    regularize_cost,
)
from towerpack.tower import add_moving_summary
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

SAMPLES, SIZE = 64, 8


class Stripes(ModelDesc):
    """Tells horizontal from vertical stripes, like LeNet, with an argscope."""

    def inputs(self):
        return [
            tf.TensorSpec([None, SIZE, SIZE, 1], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        with argscope(Conv2D, filters=8, kernel_size=3, activation=tf.nn.relu):
            logits = (
                LinearWrap(image)
                .Conv2D("conv0")
                .MaxPooling("pool0", 2)
                .Conv2D("conv1", padding="SAME", activation=BNReLU)
                .GlobalMaxPooling("gap")
                .FullyConnected("fc0", 16, activation=tf.nn.relu)
                .Dropout("dropout", 0.9)
                .FullyConnected("fc1", 2)()
            )
        tf.nn.softmax(logits, name="prob")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        decay = regularize_cost("fc.*/W", l2_regularizer(1e-4))
        cost = tf.add(tf.reduce_mean(loss), decay, name="cost")
        add_moving_summary(cost)
        return cost

    def optimizer(self):
        return v1.train.AdamOptimizer(0.01)


def stripes():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, SAMPLES).astype(np.int32)
    lines = generator.integers(0, 2, (SAMPLES, SIZE, 1, 1)).astype(np.float32)
    images = np.broadcast_to(lines, (SAMPLES, SIZE, SIZE, 1)).copy()
    images[labels == 1] = images[labels == 1].transpose(0, 2, 1, 3)
    return images + generator.normal(0, 0.1, images.shape).astype(np.float32), labels


def test_a_lenet_with_batch_norm_learns(capsys):
    images, labels = stripes()
    data = BatchData(DataFromArrays(images, labels, shuffle=True), 16)
    config = TrainConfig(dataflow=data, model=Stripes(), max_epoch=12)
    trainer = SimpleTrainer()
    launch_train_with_config(config, trainer)
    (prob,) = trainer.get_predictor(["image"], ["prob"])(images)
    assert np.mean(np.argmax(prob, 1) == labels) > 0.9
    averages = trainer.store["conv1/bn/mean/EMA"].numpy()
    assert np.abs(averages).max() > 0.01
    log = capsys.readouterr().err
    assert log.count("layer  ") == 1
    assert "conv1" in log


def test_averages_move_once_in_each_step():
    images, labels = stripes()

    class Counting(Stripes):
        def build_graph(self, image, label):
            ones = tf.ones_like(image)[:, 0, 0]
            BatchNorm("count", ones, momentum=0.5, center=False, scale=False)
            return super().build_graph(image, label)

    data = BatchData(DataFromArrays(images, labels), 16)
    trainer = SimpleTrainer()
    launch_train_with_config(TrainConfig(dataflow=data, model=Counting(), max_epoch=1), trainer)
    steps = SAMPLES // 16
    np.testing.assert_allclose(trainer.store["count/mean/EMA"], 1 - 0.5**steps)

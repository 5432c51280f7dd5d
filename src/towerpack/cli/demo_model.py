"""The convolutional network of the demo: LeNet, as towerpack's users write it."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models import Conv2D, LinearWrap, ModelDesc, argscope
from towerpack.tower import add_moving_summary, get_global_step_var

IMAGE_SIZE = 28
CLASSES = 10


class Digits(ModelDesc):
    """Classifies 28x28 grey images of digits."""

    def inputs(self) -> list[Any]:
        return [
            tf.TensorSpec([None, IMAGE_SIZE, IMAGE_SIZE], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image: Any, label: Any) -> Any:
        image = tf.expand_dims(image, 3) * 2 - 1  # black is -1, white 1

        with argscope(Conv2D, filters=32, kernel_size=3, activation=tf.nn.relu):
            logits = (
                LinearWrap(image)
                .Conv2D("conv0")
                .MaxPooling("pool0", 2)
                .Conv2D("conv1")
                .Conv2D("conv2")
                .MaxPooling("pool1", 2)
                .Conv2D("conv3")
                .FullyConnected("fc0", 512, activation=tf.nn.relu)
                .Dropout("dropout", rate=0.5)
                .FullyConnected("fc1", CLASSES)()
            )
        tf.nn.softmax(logits, name="prob")

        wrong = tf.not_equal(tf.argmax(logits, axis=1, output_type=tf.int32), label)
        wrong = tf.cast(wrong, tf.float32, name="incorrect_vector")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        cost = tf.reduce_mean(loss, name="cost")
        add_moving_summary(cost, tf.reduce_mean(wrong, name="train_error"))
        return cost

    def optimizer(self) -> Any:
        rate = tf.compat.v1.train.exponential_decay(
            1e-3, get_global_step_var(), decay_steps=100, decay_rate=0.8
        )
        return tf.compat.v1.train.AdamOptimizer(rate)

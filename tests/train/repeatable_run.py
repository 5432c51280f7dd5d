"""A short training with every kind of randomness; writes its weights: `OUT [SEED]`."""

from __future__ import annotations

import sys

import numpy as np

import towerpack
from tests.tiny_model import CLASSES, TinyModel, tiny_arrays
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays, MapData
from towerpack.models import Dropout, FullyConnected
from towerpack.optimizer import Adam
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config


class Random(TinyModel):
    """Initializers, dropout and noise of towerpack, of Keras and of TensorFlow."""

    def build_graph(self, x, label):
        hidden = Dropout(FullyConnected("fc", x, 16, activation=tf.nn.relu), rate=0.3)
        hidden = tf.keras.layers.Dense(16, "relu")(hidden)
        hidden = tf.keras.layers.Dropout(0.3)(hidden, training=True)
        hidden += 0.1 * tf.random.normal(tf.shape(hidden))
        logits = FullyConnected("out", hidden, CLASSES)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(losses, name="cost")

    def optimizer(self):
        return Adam(0.01)


def main(out: str, seed: str | None = None) -> None:
    if seed is not None:
        towerpack.set_random_seed(int(seed))
    shuffled = DataFromArrays(*tiny_arrays(), shuffle=True)
    noisy = MapData(shuffled, lambda dp, rng: [dp[0] + rng.normal(size=4).astype("f"), dp[1]])
    config = TrainConfig(
        model=Random(), dataflow=BatchData(noisy, 8, remainder=True), monitors=[], max_epoch=3
    )
    trainer = SimpleTrainer(jit=False, steps_per_call=4)
    launch_train_with_config(config, trainer)
    np.savez(out, **{name: v.numpy() for name, v in trainer.store.trainable().items()})


if __name__ == "__main__":
    main(*sys.argv[1:])

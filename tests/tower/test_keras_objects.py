"""Keras layers and models in a tower, beside the same trained by Keras' own `fit`."""

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import QueueInput
from towerpack.tower import TowerContext, VariableStore
from towerpack.train import SimpleTrainer

keras = tf.keras
layers = keras.layers

BATCH, SAMPLES, EPOCHS = 8, 24, 3
SIGNATURE = [
    tf.TensorSpec([None, 4], tf.float32, "x"),
    tf.TensorSpec([None, 2], tf.float32, "y"),
]


def arrays(shape=(4,)):
    rng = np.random.default_rng(0)
    x = rng.normal(1, 2, size=(SAMPLES, *shape)).astype(np.float32)
    return x, rng.normal(size=(SAMPLES, 2)).astype(np.float32)


def square_error(y, output):
    return tf.reduce_mean((y - output) ** 2)


def train(network, optimizer=lambda: keras.optimizers.SGD(0.1), x_shape=(4,), start=None):
    """Trains `network(x)` in a tower; returns the trainer, and the values it began with by name."""
    signature = [tf.TensorSpec([None, *x_shape], tf.float32, "x"), SIGNATURE[1]]
    data = BatchData(DataFromArrays(*arrays(x_shape), shuffle=False), BATCH)
    trainer = SimpleTrainer()
    with trainer:
        trainer.setup_graph(
            signature, QueueInput(data), lambda x, y: square_error(y, network(x)), optimizer
        )
        begin = {name: v.numpy() for name, v in trainer.store.variables.items()}
        trainer.train([], [], steps_per_epoch=SAMPLES // BATCH, max_epoch=EPOCHS)
    return trainer, begin


def fit(model, begin, optimizer=None, x_shape=(4,)):
    """Trains a model of the same layers by Keras, from the same values; its values by path."""
    for variable in model.variables:
        variable.assign(begin[variable.path])
    model.compile(optimizer or keras.optimizers.SGD(0.1), lambda y, p: tf.reduce_mean((y - p) ** 2))
    x, y = arrays(x_shape)
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    return {variable.path: variable.numpy() for variable in model.variables}


def assert_same(trainer, expected):
    assert expected
    for name, value in expected.items():
        np.testing.assert_allclose(trainer.store[name], value, atol=1e-5, err_msg=name)


def as_model(make):
    x = keras.Input([4])
    y = x
    for layer in make():
        y = layer(y)
    return keras.Model(x, y)


def inside(make):
    def network(x):
        for layer in make():
            x = layer(x)
        return x

    return network


def outside(make):
    made = make()

    def network(x):
        for layer in made:
            x = layer(x)
        return x

    return network


def model_outside(make):
    return as_model(make)


def model_inside(make):
    return lambda x: as_model(make)(x)


PLACES = pytest.mark.parametrize("place", [inside, outside, model_outside, model_inside])


def with_batch_norm():
    return [
        layers.Dense(5, name="a"),
        layers.BatchNormalization(name="bn", momentum=0.8),
        layers.Dense(2, name="b"),
    ]


@PLACES
def test_layers_without_a_training_argument_follow_the_tower(place):
    trainer, begin = train(place(with_batch_norm))
    assert np.all(begin["bn/moving_mean"] == 0)
    assert np.abs(trainer.store["bn/moving_mean"]).max() > 0.01
    assert_same(trainer, fit(as_model(with_batch_norm), begin))


@PLACES
@pytest.mark.parametrize("is_training", [True, False])
def test_dropout_drops_only_while_training(place, is_training):
    network = place(lambda: [layers.Dropout(0.5, seed=1)])
    assert dropped(network, is_training) == (is_training is True)


def dropped(network, is_training):
    store = VariableStore()

    @tf.function(autograph=False)
    def run(x):
        with TowerContext("", is_training=is_training, store=store):
            return network(x)

    return bool(np.any(run(tf.ones([3, 4])) == 0))


def test_a_training_argument_of_the_caller_wins_and_does_not_reach_the_next_layer():
    a, b = layers.Dropout(0.5), layers.Dropout(0.5)
    assert not dropped(lambda x: a(x, training=False), is_training=True)
    assert dropped(lambda x: b(a(x, training=False)), is_training=True)
    assert dropped(lambda x: a(x, training=True), is_training=False)
    assert not dropped(lambda x: b(x * 0 + tf.sign(a(x, training=True) + 1)), is_training=False)
    assert not dropped(lambda x: a(x, training=None), is_training=False)


def test_a_layer_of_layers_passes_the_mode_on():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dropout(0.5)

        def call(self, x):
            return self.inner(x)

    block = Block()
    assert dropped(lambda x: block(x), is_training=True)
    assert not dropped(lambda x: block(x), is_training=False)


def test_outside_of_towers_keras_decides_the_mode_itself():
    dropped(layers.Dropout(0.5), is_training=True)
    assert np.all(layers.Dropout(0.5)(tf.ones([9, 9])) == 1)


def test_losses_of_a_layer_are_those_of_its_latest_call():
    layer = layers.Dense(2, activity_regularizer=keras.regularizers.L2(1.0))
    for _ in range(2):
        dropped(layer, is_training=True)
        assert len(layer.losses) == 1

"""Keras objects by feature, by place where they are made, on one and two towers, against `fit`.

The reference for two towers is `fit` under a `MirroredStrategy` of two replicas.
"""

import contextlib
import functools

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import QueueInput
from towerpack.keras import KerasModel
from towerpack.tower import get_current_tower_context
from towerpack.train import (
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerReplicated,
)

keras = tf.keras
layers = keras.layers

BATCH, STEPS, EPOCHS = 8, 3, 2
X, Y = tf.TensorSpec([None, 4], tf.float32, "x"), tf.TensorSpec([None, 2], tf.float32, "y")
TRAINERS = {
    "one": SimpleTrainer,
    "shared": functools.partial(SyncMultiGPUTrainer, 2),
    "replicated": functools.partial(SyncMultiGPUTrainerReplicated, 2),
}
MASKS: dict[int, list] = {}  # by tower, one for each step


class RecordedDropout(layers.Dropout):
    def call(self, x, training=False):
        dropped = super().call(tf.ones_like(x), training=training)
        context = get_current_tower_context()
        if training and context is not None and not context.probing:
            masks = MASKS.setdefault(context.index, [])
            tf.numpy_function(lambda mask: masks.append(mask.copy()), [dropped], [])
        return x * dropped


def network(feature):
    """The layers of a small network with one of the features of the matrix."""
    first = layers.Dense(5, "tanh", name="a", trainable=feature != "frozen")
    limit = keras.constraints.MaxNorm(0.3) if feature == "constraint" else None
    last = layers.Dense(2, name="b", dtype="float32", kernel_constraint=limit)
    middle = {
        "batch norm": [layers.BatchNormalization(name="bn", momentum=0.8)],
        "dropout": [RecordedDropout(0.5, seed=1, name="drop")],
    }
    return [first, *middle.get(feature, []), last]


FEATURES = ["frozen", "batch norm", "dropout", "constraint", "mixed precision"]


def apply(made, x):
    for layer in made:
        x = layer(x)
    return x


def model_of(feature):
    x = keras.Input([4])
    return keras.Model(x, apply(network(feature), x))


def square_error(y, output):
    return tf.reduce_mean((y - output) ** 2)


def optimizer(feature):
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    return keras.optimizers.LossScaleOptimizer(sgd) if feature == "mixed precision" else sgd


POLICIES = ["mixed_bfloat16", "bfloat16", "float16", "float64"]


@contextlib.contextmanager
def policy(feature):
    before = keras.mixed_precision.dtype_policy()
    names = {"mixed precision": "mixed_float16", **dict(zip(POLICIES, POLICIES, strict=True))}
    keras.mixed_precision.set_dtype_policy(names.get(feature, before))
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(before)


@functools.cache
def arrays(towers):
    rng = np.random.default_rng(0)
    x = rng.normal(1, 2, size=(BATCH * STEPS * towers, 4)).astype(np.float32)
    return x, rng.normal(size=(len(x), 2)).astype(np.float32)


def begin(path, shape):
    """What a weight starts from, whoever trains it."""
    if path.startswith("bn"):
        return np.full(shape, path.endswith(("gamma", "variance")), np.float32)
    return np.random.default_rng(len(path)).normal(0, 0.5, shape).astype(np.float32)


@functools.cache
def reference(feature, towers):
    """The weights by path after training by Keras."""
    strategy = tf.distribute.get_strategy()
    if towers > 1:
        reduction = tf.distribute.ReductionToOneDevice("/cpu:0")
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], reduction)
    with policy(feature), strategy.scope():
        model = model_of(feature)
        for weight in model.weights:
            weight.assign(begin(weight.path, weight.shape))
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.MeanSquaredError())
        assert hasattr(model.optimizer, "inner_optimizer") == (feature == "mixed precision")
    data = tf.data.Dataset.from_tensor_slices(arrays(towers)).batch(BATCH * towers)
    with policy(feature):
        model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False)
    return {weight.path: weight.numpy() for weight in model.weights}


def predicted(feature, weights, x):
    """What Keras predicts with these weights by path."""
    with policy(feature):
        model = model_of(feature)
        for weight in model.weights:
            weight.assign(weights[weight.path])
        return model.predict(x, verbose=0)


def run(trainer):
    for name, variable in trainer.store.variables.items():
        if name.startswith(("a/", "b/", "bn/")):
            variable.assign(begin(name, variable.shape))
    trainer.train([], [], steps_per_epoch=STEPS, max_epoch=EPOCHS)


def in_tower(trainer, feature, towers, call):
    data = QueueInput(BatchData(DataFromArrays(*arrays(towers), shuffle=False), BATCH))

    def tower(x, y):
        return square_error(y, tf.identity(call(x), name="prediction"))

    trainer.setup_graph([X, Y], data, tower, lambda: optimizer(feature))
    run(trainer)


def layers_inside(trainer, feature, towers):
    in_tower(trainer, feature, towers, lambda x: apply(network(feature), x))


def model_outside(trainer, feature, towers):
    in_tower(trainer, feature, towers, model_of(feature))


def keras_model(trainer, feature, towers):
    data = BatchData(DataFromArrays(*arrays(towers), shuffle=False), BATCH)
    model = KerasModel(lambda x: apply(network(feature), x), [X], [Y], data, trainer)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.setup()
    run(trainer)


CELLS = [
    (place, kind)
    for place in (layers_inside, model_outside, keras_model)
    for kind in TRAINERS
    if (place, kind) != (model_outside, "replicated")  # which is refused
]


@pytest.mark.parametrize("place, kind", CELLS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("feature", FEATURES)
def test_B7_the_keras_matrix(feature, place, kind):
    towers = 1 if kind == "one" else 2
    MASKS.clear()
    with policy(feature), TRAINERS[kind]() as trainer:
        place(trainer, feature, towers)
        x = arrays(towers)[0]
        (prediction,) = trainer.get_predictor(["x"], ["prediction"])(x)
    if feature == "dropout":
        check_masks(towers)
    if feature == "dropout" and towers == 2:  # other masks than Keras', so other weights
        expected = {name: variable.numpy() for name, variable in trainer.store.variables.items()}
    else:
        expected = reference(feature, towers)
        for path, value in expected.items():
            np.testing.assert_allclose(trainer.store[path], value, atol=1e-5, err_msg=path)
    np.testing.assert_allclose(prediction, predicted(feature, expected, x), atol=1e-4)
    if feature == "frozen":
        np.testing.assert_array_equal(trainer.store["a/kernel"], begin("a/kernel", [4, 5]))


@pytest.mark.parametrize("place", [layers_inside, model_outside, keras_model])
@pytest.mark.parametrize("name", POLICIES)
def test_B7_dtype_policies_of_keras(name, place):
    with policy(name), SimpleTrainer() as trainer:
        place(trainer, name, 1)
    for path, expected in reference(name, 1).items():
        assert trainer.store[path].dtype == expected.dtype
        ours, theirs = (np.asarray(v, np.float64) for v in (trainer.store[path], expected))
        np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=path)


def check_masks(towers):
    """Every tower drops about half in every step, each time others."""
    assert sorted(MASKS) == list(range(towers))
    assert {len(masks) for masks in MASKS.values()} == {STEPS * EPOCHS}
    masks = [mask for of_tower in MASKS.values() for mask in of_tower]
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    assert 0.3 < np.mean([mask == 0 for mask in masks]) < 0.7

"""Keras layers with state in several towers."""

import numpy as np
import pytest

from tests.train.test_multi_gpu import Model, data, trained
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.tower import get_current_tower_context
from towerpack.train import (
    AsyncMultiGPUTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerReplicated,
)

keras = tf.keras
MOMENTUM, STEPS = 0.5, 4


class Normalized(Model):
    """A Keras model with batch normalization, made outside of the tower function or inside."""

    def __init__(self, outside=True, **options):
        super().__init__()
        self.outside, self.options = outside, options
        self.layer = self.make()

    def make(self):
        return keras.layers.BatchNormalization(momentum=MOMENTUM, name="bn", **self.options)

    def build_graph(self, x, y):
        return super().build_graph((self.layer if self.outside else self.make())(x), y)


def first_towers_averages(towers):
    mean, variance = np.zeros(6), np.ones(6)
    for x, _ in list(BatchData(data(), 8))[: STEPS * towers : towers]:
        mean = MOMENTUM * mean + (1 - MOMENTUM) * x.mean(0)
        variance = MOMENTUM * variance + (1 - MOMENTUM) * x.var(0)
    return mean, variance


@pytest.mark.parametrize(
    "make, towers, outside",
    [
        (SimpleTrainer, 1, True),
        (SimpleTrainer, 1, False),
        (lambda: SyncMultiGPUTrainer(2), 2, True),
        (lambda: SyncMultiGPUTrainer(2), 2, False),
        (lambda: SyncMultiGPUTrainer(2, eager=True), 2, True),
        (lambda: SyncMultiGPUTrainerReplicated(2), 2, False),
    ],
)
def test_B7_averages_of_keras_follow_the_first_tower_once_a_step(make, towers, outside):
    trainer = make()
    trained(trainer, 8, Normalized(outside), steps=STEPS)
    for name, expected in zip(("mean", "variance"), first_towers_averages(towers), strict=True):
        average = trainer.store[f"bn/moving_{name}"].numpy()
        np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-6)


def test_only_the_first_of_asynchronous_towers_updates_the_averages_of_keras():
    trainer = AsyncMultiGPUTrainer(2)
    ones = DataFromArrays(np.ones((96, 6), np.float32), np.ones(96, np.float32))
    trained(trainer, 8, Normalized(), steps=STEPS, flow=ones)
    np.testing.assert_allclose(trainer.store["bn/moving_mean"].numpy(), 1 - MOMENTUM**STEPS)


class Dropping(Model):
    """Records which elements of a constant are dropped, by tower and step."""

    def __init__(self, outside, seed=None):
        super().__init__()
        self.outside, self.seed, self.masks = outside, seed, {}
        self.layer = self.make()

    def make(self):
        return keras.layers.Dropout(0.5, seed=self.seed, name="drop")

    def build_graph(self, x, y):
        context = get_current_tower_context()
        layer = self.layer if self.outside else self.make()
        dropped = layer(tf.ones([64]))
        if not context.probing:
            masks = self.masks.setdefault((context.is_training, context.index), [])
            tf.numpy_function(lambda mask: masks.append(mask.copy()), [dropped], [])
        return super().build_graph(x, y)


@pytest.mark.parametrize("outside", [True, False], ids=["outside", "inside"])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("make", [SyncMultiGPUTrainer, SyncMultiGPUTrainerReplicated])
def test_B7_dropout_of_keras_draws_another_mask_in_each_tower_and_step(make, outside, seed):
    model, trainer = Dropping(outside, seed), make(2)
    trained(trainer, 8, model, steps=STEPS)
    first, second = (model.masks[True, index] for index in range(2))
    assert len(first) == len(second) == STEPS
    different = {mask.tobytes() for mask in [*first, *second]}
    assert len(different) == 2 * STEPS
    assert 0.2 < np.mean([mask == 0 for mask in [*first, *second]]) < 0.8

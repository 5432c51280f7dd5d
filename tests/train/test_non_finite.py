import re

import numpy as np
import pytest

from tests.train.test_multi_gpu import Model
from towerpack import optimizer
from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.tower import gradproc
from towerpack.train import (
    AsyncMultiGPUTrainer,
    NonFiniteCost,
    NonFiniteWeights,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerReplicated,
    TrainConfig,
    launch_train_with_config,
)
from towerpack.train.builder import QUICK_SIZE

BATCH, BAD = 4, 36  # the 37th step
WAYS = {  # the trainer, and in which step it meets the bad batch
    "single": (lambda: SimpleTrainer(steps_per_call=1), 37),
    "fused": (lambda: SimpleTrainer(steps_per_call=50), 37),
    "compiled": (lambda: SimpleTrainer(jit=True), 37),
    "eager": (lambda: SimpleTrainer(eager=True), 37),
    "two towers": (lambda: SyncMultiGPUTrainer(2, steps_per_call=50), 19),
}


def poisoned():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    x[BAD * BATCH + 1, 3] = np.nan
    return x


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


def train(trainer, model, x, steps=50):
    flow = BatchData(DataFromArrays(x, np.zeros(400, np.float32), shuffle=False), BATCH)
    launch_train_with_config(
        TrainConfig(model=model, dataflow=flow, monitors=[], max_epoch=1, steps_per_epoch=steps),
        trainer,
    )


@pytest.mark.parametrize(("trainer", "step"), WAYS.values(), ids=WAYS)
def test_F14_a_cost_that_is_nan_stops_the_run_with_its_batch(directory, trainer, step):
    x = poisoned()
    trainer = trainer()
    with pytest.raises(NonFiniteCost) as caught:
        train(trainer, Model(), x)
    assert trainer.global_step == step
    text = str(caught.value)
    assert f"the cost of step {step} is not finite (nan)" in text
    assert "batch 36 of pass 0" in text
    path = directory / f"non-finite-step-{step}.npz"
    assert str(path) in text
    with np.load(path, allow_pickle=False) as saved:
        np.testing.assert_array_equal(saved["x"], x[BAD * BATCH : (BAD + 1) * BATCH])


def test_without_a_directory_the_error_says_how_to_keep_the_batch():
    logger.close_log_file()
    with pytest.raises(NonFiniteCost, match="set_logger_dir"):
        train(SimpleTrainer(), Model(), poisoned())


def test_infinite_counts_as_well():
    class Exploding(Model):
        def build_graph(self, x, y):
            return super().build_graph(x, y) * tf.constant(np.float32(np.inf))

    with pytest.raises(NonFiniteCost, match=r"step 1 is not finite \(inf\)"):
        train(SimpleTrainer(), Exploding(), poisoned())


class NormOfZero(Model):
    """A norm, which has no slope at 0: there its gradient is NaN while the cost is a number.

    Of a matrix of weights, and with `bias` of a vector, too.
    """

    def __init__(self, bias=False, **options):
        super().__init__(**options)
        self.bias = bias

    def build_graph(self, x, y):
        cost = super().build_graph(x, y)
        projected = x @ v1.get_variable("norm/W", [6, 3])
        if self.bias:
            some = tf.cast(tf.reduce_any(x != 0), tf.float32)
            projected += some * v1.get_variable("norm/b", [3])
        return cost + 0.01 * tf.norm(projected)


def emptied(first=BAD, batches=1):
    x = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    x[first * BATCH : (first + batches) * BATCH] = 0
    return x


@pytest.mark.parametrize(
    ("trainer", "step"),
    [
        *WAYS.values(),
        (lambda: SyncMultiGPUTrainerReplicated(2, steps_per_call=50), 19),
    ],
    ids=[*WAYS, "replicated"],
)
def test_F14_a_gradient_that_is_nan_stops_the_run_in_its_step(directory, trainer, step):
    towers = 37 // step
    x = emptied(BAD, towers)
    trainer = trainer()
    with pytest.raises(NonFiniteWeights) as caught:
        train(trainer, NormOfZero(bias=True), x)
    assert trainer.global_step == step
    text = str(caught.value)
    assert "norm/W" in text and "norm/b" in text and "fc0/W" not in text
    assert f"step {step}, at batch 36 of pass 0" in text
    with np.load(directory / f"non-finite-step-{step}.npz", allow_pickle=False) as saved:
        assert not saved["x"].any() and len(saved["x"]) == BATCH


class NormOfZeroOnly(Model):
    """The same in those batches only: others have a cost that is a number, whatever W is."""

    def build_graph(self, x, y):
        norm = tf.norm(x @ v1.get_variable("norm/W", [6, 2 * QUICK_SIZE]))
        return super().build_graph(x, y) + tf.where(tf.reduce_any(x != 0), 0.0, norm)


def test_F14_a_compiled_call_finds_a_large_ruined_weight_before_it_returns(directory):
    """Which step it was is not known: the batches of all its steps are kept."""
    trainer = SimpleTrainer(jit=True)
    x = emptied()
    with pytest.raises(NonFiniteWeights) as caught:
        train(trainer, NormOfZeroOnly(), x)
    text = str(caught.value)
    assert "so is norm/W since one of the steps" in text
    first, last = map(int, re.search(r"steps (\d+) to (\d+)", text).groups())
    assert last == trainer.global_step and first <= BAD + 1 <= last
    assert f"batch {first - 1} of pass 0" in text
    with np.load(directory / f"non-finite-step-{last}.npz", allow_pickle=False) as saved:
        kept = x[(first - 1) * BATCH : last * BATCH].reshape(-1, BATCH, 6)
        np.testing.assert_array_equal(saved["x"], kept)


def test_F14_a_compiled_call_of_one_step_knows_its_step_and_keeps_its_batch(directory):
    x = emptied(first=0)
    with pytest.raises(NonFiniteWeights, match="so is norm/W since step 1, at batch 0"):
        train(SimpleTrainer(jit=True), NormOfZeroOnly(), x, steps=2)  # the last is run by itself
    with np.load(directory / "non-finite-step-1.npz", allow_pickle=False) as saved:
        np.testing.assert_array_equal(saved["x"], x[:BATCH])


def test_F14_a_weight_that_the_cost_does_not_show_is_found_in_its_step(directory):
    with pytest.raises(NonFiniteWeights, match="so is norm/W since step 37,"):
        train(SimpleTrainer(steps_per_call=1), NormOfZeroOnly(), emptied())


def test_F14_towers_that_do_not_wait_for_each_other_stop_too(directory):
    with pytest.raises(NonFiniteWeights, match="norm/W"):
        train(AsyncMultiGPUTrainer(2, steps_per_call=5), NormOfZero(), emptied())


def test_a_gradient_that_a_processor_puts_right_does_not_stop_the_run():
    def repaired():
        no_nan = gradproc.MapGradient(lambda g: tf.where(tf.math.is_finite(g), g, 0))
        return optimizer.apply_grad_processors(optimizer.SGD(0.1), [no_nan])

    trainer = SimpleTrainer()
    train(trainer, NormOfZero(optimizer=repaired), emptied())
    assert trainer.global_step == 50


def test_a_step_left_out_by_the_loss_scale_does_not_stop_the_run():
    trainer = SimpleTrainer(loss_scale="dynamic", steps_per_call=1)
    train(trainer, NormOfZero(), emptied())
    assert trainer.global_step == 50


def test_F14_rows_of_a_table_are_looked_at(directory):
    class Rows(Model):
        def build_graph(self, x, y):
            table = v1.get_variable("table", [6, 3])
            rows = tf.where(tf.reduce_any(x != 0, 1), 0, 5)
            vectors = tf.gather(table, rows) * tf.cast(rows == 0, tf.float32)[:, None]
            return super().build_graph(x, y) + 0.01 * tf.norm(vectors)

    with pytest.raises(NonFiniteWeights, match="so is table since step 37,"):
        train(SimpleTrainer(steps_per_call=1), Rows(), emptied())


class LargeWeights(Model):
    """Also has weights that are finite, but so large that their sum is not."""

    def build_graph(self, x, y):
        cost = super().build_graph(x, y)
        for name, size in (("small", 4), ("large", 2 * QUICK_SIZE)):
            weights = v1.get_variable(name, [size], initializer=v1.constant_initializer(3e38))
            cost += 0 * tf.reduce_max(weights)
        wide = tf.constant_initializer(1e300)  # infinite in float32
        cost += tf.cast(0 * v1.get_variable("wide", [2], tf.float64, wide)[0], tf.float32)
        return cost


@pytest.mark.parametrize("trainer", [way for way, _ in WAYS.values()], ids=WAYS)
def test_large_weights_are_not_taken_for_infinite(directory, trainer):
    trainer = trainer()
    train(trainer, LargeWeights(), emptied(), steps=6)
    assert trainer.global_step == 6
    assert not list(directory.glob("non-finite-*"))


@pytest.mark.parametrize("trainer", [way for way, _ in WAYS.values()], ids=WAYS)
def test_F14_a_weight_that_becomes_nan_beside_large_ones_is_named(directory, trainer):
    class Both(NormOfZero, LargeWeights):
        pass

    with pytest.raises(NonFiniteWeights, match="so is norm/W since"):
        train(trainer(), Both(), emptied(first=2, batches=2), steps=6)


def test_a_large_cost_of_a_float64_model_is_not_taken_for_infinite():
    class LargeCost(Model):
        def build_graph(self, x, y):
            w = v1.get_variable("w", [], tf.float64, v1.ones_initializer())
            return 1e300 * w + 0 * tf.cast(super().build_graph(x, y), tf.float64)

    def slow():
        return optimizer.SGD(0.0)

    for trainer in (SimpleTrainer(steps_per_call=1), SimpleTrainer(jit=True)):
        train(trainer, LargeCost(optimizer=slow), emptied(), steps=6)
        assert trainer.global_step == 6

import numpy as np
import pytest

from tests.train.test_multi_gpu import Model
from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.train import (
    NonFiniteCost,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    TrainConfig,
    launch_train_with_config,
)

BATCH, BAD = 4, 36  # the 37th step


def poisoned():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    x[BAD * BATCH + 1, 3] = np.nan
    return x


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


@pytest.mark.parametrize(
    ("trainer", "step"),
    [
        (lambda: SimpleTrainer(steps_per_call=1), 37),
        (lambda: SimpleTrainer(steps_per_call=50), 37),
        (lambda: SimpleTrainer(jit=True), 37),
        (lambda: SimpleTrainer(eager=True), 37),
        (lambda: SyncMultiGPUTrainer(2, steps_per_call=50), 19),
    ],
    ids=["single", "fused", "compiled", "eager", "two towers"],
)
def test_F14_a_cost_that_is_nan_stops_the_run_with_its_batch(directory, trainer, step):
    x = poisoned()
    flow = BatchData(DataFromArrays(x, np.zeros(400, np.float32), shuffle=False), BATCH)
    trainer = trainer()
    with pytest.raises(NonFiniteCost) as caught:
        launch_train_with_config(
            TrainConfig(model=Model(), dataflow=flow, monitors=[], max_epoch=1, steps_per_epoch=50),
            trainer,
        )
    assert trainer.global_step == step
    text = str(caught.value)
    assert f"the cost of step {step} is not finite" in text
    assert "batch 36 of pass 0" in text
    path = directory / f"non-finite-step-{step}.npz"
    assert str(path) in text
    with np.load(path, allow_pickle=False) as saved:
        np.testing.assert_array_equal(saved["x"], x[BAD * BATCH : (BAD + 1) * BATCH])


def test_without_a_directory_the_error_says_how_to_keep_the_batch():
    logger.close_log_file()
    flow = BatchData(DataFromArrays(poisoned(), np.zeros(400, np.float32), shuffle=False), BATCH)
    with pytest.raises(NonFiniteCost, match="set_logger_dir"):
        launch_train_with_config(
            TrainConfig(model=Model(), dataflow=flow, monitors=[], max_epoch=1), SimpleTrainer()
        )


def test_infinite_counts_as_well():
    class Exploding(Model):
        def build_graph(self, x, y):
            return super().build_graph(x, y) * tf.constant(np.float32(np.inf))

    flow = BatchData(DataFromArrays(poisoned(), np.zeros(400, np.float32), shuffle=False), BATCH)
    with pytest.raises(NonFiniteCost, match="step 1 "):
        launch_train_with_config(
            TrainConfig(model=Exploding(), dataflow=flow, monitors=[], max_epoch=1), SimpleTrainer()
        )

"""Options of runs, and weights to start from."""

import pytest

from towerpack import NoOpTrainer, SimpleTrainer, SyncMultiGPUTrainer, save_checkpoint
from towerpack._tensorflow import tf
from towerpack.estimator.run_config import RunConfig, WarmStartSettings, as_warm_start


def test_intervals_of_checkpoints():
    assert RunConfig().save_interval == "600 s"
    assert RunConfig(save_checkpoints_secs=9).save_interval == "9 s"
    assert RunConfig(save_checkpoints_steps=9).replace(model_dir="a").save_interval == "9 steps"
    with pytest.raises(ValueError, match="save_checkpoints_steps or save_checkpoints_secs"):
        RunConfig(save_checkpoints_steps=9, save_checkpoints_secs=9)
    with pytest.raises(ValueError, match="positive log_step_count_steps"):
        RunConfig(log_step_count_steps=0)


def test_trainers():
    assert isinstance(RunConfig().make_trainer(), SimpleTrainer)
    several = RunConfig(train_distribute=lambda: SyncMultiGPUTrainer(2))
    assert several.make_trainer() is not several.make_trainer()
    trainer = SimpleTrainer()
    assert RunConfig(train_distribute=trainer).make_trainer() is trainer
    with pytest.raises(TypeError, match="expected a trainer"):
        RunConfig(train_distribute=NoOpTrainer).make_trainer()


def test_weights_of_a_checkpoint_by_name():
    save_checkpoint({"w": tf.Variable(1.0), "old/v": tf.Variable(2.0)}, "old")
    assert as_warm_start(None) is None
    assert as_warm_start("old") == WarmStartSettings("old")
    settings = WarmStartSettings("old", ["^w", "v$"], {"new/v": "old/v"})
    assert settings.values(["w", "new/v", "b"]) == {"w": 1, "new/v": 2}
    with pytest.raises(KeyError, match="no variable 'new/v'.*the nearest are.*'old/v'"):
        WarmStartSettings("old").values(["w", "new/v"])
    with pytest.raises(ValueError, match="to match variables among 'w'"):
        WarmStartSettings("old", "x").values(["w"])

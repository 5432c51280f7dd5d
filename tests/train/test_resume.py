import numpy as np
import pytest

from tests.tiny_model import BATCH, SAMPLES, TinyModel, tiny_flow
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, ModelSaver
from towerpack.checkpoint import LoadError, get_all_checkpoints, save_checkpoint
from towerpack.checkpoint.store import remove_checkpoint
from towerpack.core import logger
from towerpack.train import (
    AutoResumeTrainConfig,
    SimpleTrainer,
    TrainConfig,
    launch_train_with_config,
)
from towerpack.train.resume import find_run

STEPS = SAMPLES // BATCH


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


class Steps(Callback):
    """Which epochs and steps this process ran."""

    def _before_train(self):
        self.first = self.global_step
        self.epochs = []

    def _trigger_epoch(self):
        self.epochs.append(self.epoch_num)


def train(*callbacks, epochs, config=TrainConfig, model=None, **options):
    steps = Steps()
    trainer = SimpleTrainer(jit=False)
    launch_train_with_config(
        config(
            model=model or TinyModel(),
            dataflow=tiny_flow(),
            callbacks=[steps, *callbacks],
            extra_callbacks=[],
            max_epoch=epochs,
            **{"monitors": [], **options},
        ),
        trainer,
    )
    return trainer, steps


def test_the_same_command_goes_on_and_a_finished_run_says_so(directory):
    train(ModelSaver(), epochs=2, resume="auto")
    trainer, steps = train(ModelSaver(), epochs=4, resume="auto")
    assert (steps.first, steps.epochs) == (2 * STEPS, [3, 4])
    assert trainer.global_step == 4 * STEPS
    files = sorted(directory.iterdir())
    trainer, steps = train(ModelSaver(), epochs=4, resume="auto")
    assert not hasattr(steps, "first")
    assert trainer.global_step == 0
    assert sorted(directory.iterdir()) == files


def test_P3_a_resumed_run_equals_one_that_never_stopped(directory):
    tf.random.set_seed(1)
    whole, _ = train(epochs=3)
    tf.random.set_seed(1)
    train(ModelSaver(every="4 steps"), epochs=1, resume="auto")
    for prefix in get_all_checkpoints(directory)[-1:]:  # the end of the epoch: go on in its middle
        remove_checkpoint(prefix)
    tf.random.set_seed(99)
    trainer, steps = train(ModelSaver(), epochs=3, resume="auto")
    assert steps.first == 4
    assert steps.epochs == [1, 2, 3]
    np.testing.assert_array_equal(trainer.store["fc/W"], whole.store["fc/W"])


def test_F11_a_run_goes_on_from_the_previous_when_the_latest_is_damaged(directory):
    train(ModelSaver(), epochs=2, resume="auto")
    data = directory / f"model-{2 * STEPS}.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    _, steps = train(ModelSaver(), epochs=2, resume="auto")
    assert (steps.first, steps.epochs) == (STEPS, [2])


def test_B4_another_model_does_not_resume(directory):
    class Wider(TinyModel):
        def optimizer(self):
            return tf.keras.optimizers.Adam(0.1)

    train(ModelSaver(), epochs=1, resume="auto")
    with pytest.raises(LoadError, match="missing in the file"):
        train(ModelSaver(), epochs=2, resume="auto", model=Wider())


def test_resume_needs_a_directory(tmp_path):
    with pytest.raises(ValueError, match="set_logger_dir"):
        train(epochs=1, resume="auto")
    assert find_run(tmp_path) is None
    assert find_run(None) is None


def test_the_old_config_resumes_always_or_prefers_what_was_passed(directory):
    train(ModelSaver(), epochs=1, config=AutoResumeTrainConfig)
    _, steps = train(
        ModelSaver(), epochs=2, config=AutoResumeTrainConfig, session_init={}, starting_epoch=1
    )
    assert steps.epochs == [2]
    _, steps = train(
        epochs=1,
        config=AutoResumeTrainConfig,
        session_init={"fc/b": [1, 2, 3.0]},
        always_resume=False,
    )
    assert steps.epochs == [1]


def test_a_directory_of_tensorpack_gives_weights_and_epoch(directory):
    values = {"fc/W": np.ones([4, 3], np.float32), "global_step": np.int64(20)}
    save_checkpoint(values, directory / "model-20")
    (directory / "model-20.manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="stats.json"):
        AutoResumeTrainConfig(model=TinyModel(), dataflow=tiny_flow())
    (directory / "stats.json").write_text('[{"epoch_num": 2, "global_step": 20, "cost": 1.0}]')
    config = AutoResumeTrainConfig(model=TinyModel(), dataflow=tiny_flow())
    assert config.starting_epoch == 3
    trainer = SimpleTrainer(jit=False)
    config.max_epoch, config.extra_callbacks, config.monitors = 2, [], []
    launch_train_with_config(config, trainer)
    assert trainer.global_step == 20
    np.testing.assert_array_equal(trainer.store["fc/W"], 1)

import numpy as np
import pytest

from tests.tiny_model import BATCH, SAMPLES, TinyModel, tiny_flow
from towerpack import optimizer
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, ModelSaver
from towerpack.checkpoint import LoadError, get_all_checkpoints, save_checkpoint
from towerpack.checkpoint.store import remove_checkpoint
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays, MultiProcessMapData
from towerpack.models import ModelDesc
from towerpack.train import (
    AutoResumeTrainConfig,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerReplicated,
    TrainConfig,
    launch_train_with_config,
)
from towerpack.train import config as train_config
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


def train(*callbacks, epochs, config=TrainConfig, model=None, flow=None, trainer=None, **options):
    steps = Steps()
    trainer = trainer or SimpleTrainer(jit=False)
    launch_train_with_config(
        config(
            model=model or TinyModel(),
            dataflow=flow or tiny_flow(),
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


def test_of_several_ranks_only_the_chief_reads_a_directory_of_tensorpack(directory, monkeypatch):
    save_checkpoint({"fc/W": np.ones([4, 3], np.float32)}, directory / "model-20")
    (directory / "model-20.manifest.json").unlink()
    monkeypatch.setattr(train_config, "is_chief", lambda: False)
    assert AutoResumeTrainConfig(model=TinyModel(), dataflow=tiny_flow()).session_init is None


class Numbered(ModelDesc):
    """Notes which datapoints each tower has seen in which epoch."""

    def __init__(self):
        self.seen = []

    def inputs(self):
        return [tf.TensorSpec([None], tf.int64, "x")]

    def build_graph(self, x):
        weight = tf.compat.v1.get_variable("W", [], initializer=tf.zeros_initializer())
        noted = tf.py_function(lambda values: self.seen.append(values.numpy().tolist()), [x], [])
        with tf.control_dependencies([noted]):
            return tf.reduce_mean(weight * tf.cast(x, tf.float32), name="cost")

    def optimizer(self):
        return optimizer.SGD(0.001)


def numbered(batch, mapped):
    flow = DataFromArrays(np.arange(24), shuffle=True)
    if mapped:
        flow = MultiProcessMapData(flow, 2, lambda dp: dp)
    return BatchData(flow, batch)


TRAINERS = {
    "one": lambda: SimpleTrainer(jit=False),
    "two, shared": lambda: SyncMultiGPUTrainer(2, jit=False),
    "two, replicated": lambda: SyncMultiGPUTrainerReplicated(2, jit=False),
}


@pytest.mark.parametrize("mapped", [False, True], ids=["by index", "from workers"])
def test_other_towers_with_the_total_batch_kept_see_each_datapoint_once(directory, mapped, capsys):
    """Each time resumed after the second of an epoch's four steps."""
    seen = []
    legs = ["one", "two, shared", "one", "two, replicated"]
    for epoch, kind in enumerate(legs, 1):
        model = Numbered()
        train(
            ModelSaver(every="2 steps"),
            epochs=epoch,
            model=model,
            flow=numbered(6 if kind == "one" else 3, mapped),
            trainer=TRAINERS[kind](),
            steps_per_epoch=4,
            resume="auto",
        )
        seen += [number for batch in model.seen for number in batch]
        if epoch < len(legs):
            remove_checkpoint(directory / f"model-{4 * epoch}")
            del seen[-12:]
    epochs = [seen[start : start + 24] for start in range(0, len(seen), 24)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(24))] * len(legs)
    said = capsys.readouterr().err
    assert "the total batch (towers x batch) stays 6: it was 1 x 6 and now is 2 x 3" in said
    assert "received" not in said


def test_another_total_batch_is_said(directory, capsys):
    for epoch, kind in enumerate(["one", "two, shared"], 1):
        train(
            ModelSaver(),
            epochs=epoch,
            model=Numbered(),
            flow=numbered(6, mapped=False),
            trainer=TRAINERS[kind](),
            steps_per_epoch=2,
            resume="auto",
        )
    said = capsys.readouterr().err
    assert "of the checkpoint, 1 x 6 = 6, received 2 x 6 = 12" in said
    assert "2 times as many datapoints" in said
    assert "Batches of 3 for each of 2 towers would keep it" in said

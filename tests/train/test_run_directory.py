"""A new run in the directory of an earlier one moves that one aside, and says where."""

import pytest

from tests.tiny_model import TinyModel, tiny_flow
from towerpack.callbacks import ModelSaver
from towerpack.checkpoint import SmartInit, get_all_checkpoints
from towerpack.core import logger
from towerpack.monitor import JSONWriter
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config


@pytest.fixture(autouse=True)
def no_log_file():
    yield
    logger.close_log_file()


def train(directory, action=None, max_epoch=2, **changes):
    logger.set_logger_dir(directory, action)
    config = TrainConfig(
        model=TinyModel(),
        dataflow=tiny_flow(),
        callbacks=[ModelSaver()],
        max_epoch=max_epoch,
        **changes,
    )
    launch_train_with_config(config, SimpleTrainer())
    logger.close_log_file()


def events(directory):
    return list(directory.glob("events.*"))


def old_runs(tmp_path):
    return sorted(path for path in tmp_path.iterdir() if path.name.startswith("run."))


def test_the_earlier_run_is_moved_aside_and_the_files_of_the_user_stay(tmp_path):
    run = tmp_path / "run"
    train(run)
    (run / "hyper.txt").write_text("learning_rate:0.1")
    (run / "data.index").write_text("of a TFRecord")
    train(run, max_epoch=1)
    (old,) = old_runs(tmp_path)
    assert [path[-7:] for path in get_all_checkpoints(run)] == ["model-6"]
    assert [path[-8:] for path in get_all_checkpoints(old)] == ["/model-6", "model-12"]
    assert len(events(run)) == len(events(old)) == 1
    assert [len(JSONWriter.load_existing_json(each)) for each in (run, old)] == [1, 2]
    assert {"hyper.txt", "data.index"} <= {path.name for path in run.iterdir()}
    assert f"it is now in {old}" in (run / logger.LOG_FILE).read_text()
    train(run, max_epoch=1)
    train(run, max_epoch=1)  # within the same second
    assert len(old_runs(tmp_path)) == 3


def test_a_resumed_run_and_the_action_k_leave_everything_in_place(tmp_path):
    run = tmp_path / "run"
    train(run, max_epoch=1)
    train(run, resume="auto")
    assert [record["epoch_num"] for record in JSONWriter.load_existing_json(run)] == [1, 2]
    train(run, "k", max_epoch=1)
    assert old_runs(tmp_path) == []


def test_a_run_may_start_from_a_checkpoint_of_the_run_that_it_moves(tmp_path):
    run = tmp_path / "run"
    train(run)
    train(run, max_epoch=1, session_init=SmartInit(run / "model-12"))
    assert len(old_runs(tmp_path)) == 1


def test_a_directory_without_a_run_is_left_alone(tmp_path):
    run = tmp_path / "run"
    for _ in range(2):
        logger.set_logger_dir(run)
        logger.close_log_file()
    train(run, max_epoch=1)
    assert old_runs(tmp_path) == []

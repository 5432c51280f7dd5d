import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.checkpoint import get_all_checkpoints, get_checkpoint_path, save_checkpoint
from towerpack.checkpoint.directory import candidates, read_state, step_of, write_state


def saved(directory, step):
    return save_checkpoint(
        {"W": np.full([3], step)}, directory / f"model-{step}", run={}, step=step
    )


def test_what_people_type_for_a_checkpoint(tmp_path):
    path = saved(tmp_path, 7)
    write_state(tmp_path, [path])
    for typed in [
        path,
        path + ".index",
        path + ".data-00000-of-00001",
        path + ".run.json",
        path + ".manifest.json",
        tmp_path,
        tmp_path / "checkpoint",
    ]:
        assert get_checkpoint_path(typed) == path
    with pytest.raises(FileNotFoundError, match="model-8"):
        get_checkpoint_path(tmp_path / "model-8")
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        get_checkpoint_path(tmp_path.parent)
    (tmp_path / "weights.bin").write_bytes(b"?")
    with pytest.raises(FileNotFoundError, match=r"weights.bin is not a checkpoint: .*safetensors"):
        get_checkpoint_path(tmp_path / "weights.bin")


def test_all_checkpoints_are_listed_by_step_without_endings(tmp_path):
    for step in (100, 20, 3):
        saved(tmp_path, step)
    save_checkpoint({"W": np.ones(1)}, tmp_path / "min-error")
    save_checkpoint({"W": np.ones(1)}, tmp_path / "other-5")
    assert get_all_checkpoints(tmp_path) == [str(tmp_path / f"model-{n}") for n in (3, 20, 100)]
    assert get_all_checkpoints(tmp_path, "other") == [str(tmp_path / "other-5")]
    assert step_of(tmp_path / "model-20") == 20
    assert step_of("min-error") is None


def test_tensorflow_agrees_on_the_latest(tmp_path):
    paths = [saved(tmp_path, step) for step in (1, 2, 3)]
    write_state(tmp_path, [paths[0], paths[2], paths[1]])
    assert tf.train.latest_checkpoint(str(tmp_path)) == paths[1] == get_checkpoint_path(tmp_path)
    assert read_state(tmp_path) == ["model-1", "model-3", "model-2"]
    assert candidates(tmp_path) == [paths[1], paths[2], paths[0]]


def test_F11_without_the_state_file_the_steps_decide(tmp_path):
    paths = [saved(tmp_path, step) for step in (9, 10)]
    assert get_checkpoint_path(tmp_path) == paths[1]
    (tmp_path / "checkpoint").write_bytes(b"\xff\x00 rubbish")
    assert get_checkpoint_path(tmp_path) == paths[1]


def test_F11_a_damaged_latest_is_named_and_the_one_before_used(tmp_path, caplog):
    paths = [saved(tmp_path, step) for step in (1, 2)]
    write_state(tmp_path, paths)
    (tmp_path / "model-2.data-00000-of-00001").write_bytes(b"short")
    assert get_checkpoint_path(tmp_path) == paths[0]
    (tmp_path / "model-1.index").unlink()
    with pytest.raises(FileNotFoundError):
        get_checkpoint_path(tmp_path)


def test_one_that_was_removed_by_hand_is_no_damage(tmp_path):
    paths = [saved(tmp_path, step) for step in (1, 2)]
    write_state(tmp_path, [*paths, tmp_path / "model-3"])
    assert candidates(tmp_path) == [paths[1], paths[0]]


def test_states_of_others_are_read(tmp_path):
    saver = tf.train.CheckpointManager(tf.train.Checkpoint(v=tf.Variable(1.0)), tmp_path, 3)
    path = saver.save()
    assert get_checkpoint_path(tmp_path) == path

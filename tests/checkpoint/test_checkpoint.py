import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.checkpoint import (
    LoadError,
    SmartInit,
    get_checkpoint_path,
    load_checkpoint_vars,
    save_checkpoint,
)
from towerpack.checkpoint.files import write_state


@pytest.fixture
def variables():
    return {
        "conv0/W": tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "global_step": tf.Variable(7, dtype=tf.int64),
    }


def test_a_round_trip_is_exact_and_tensorflow_reads_it(tmp_path, variables):
    path = save_checkpoint(variables, tmp_path / "model-7")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "model-7.data-00000-of-00001",
        "model-7.index",
    ]
    reader = tf.train.load_checkpoint(path)
    np.testing.assert_array_equal(reader.get_tensor("conv0/W"), variables["conv0/W"])
    assert load_checkpoint_vars(path)["global_step"] == 7


def test_what_people_type_for_a_checkpoint(tmp_path, variables):
    path = save_checkpoint(variables, tmp_path / "model-7")
    write_state(tmp_path, [path])
    for typed in [
        path,
        path + ".index",
        path + ".data-00000-of-00001",
        tmp_path,
        tmp_path / "checkpoint",
    ]:
        assert get_checkpoint_path(typed) == path
    with pytest.raises(FileNotFoundError, match="model-8"):
        get_checkpoint_path(tmp_path / "model-8")
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        get_checkpoint_path(tmp_path.parent)


def test_the_report_says_what_was_loaded_missing_and_unused(variables):
    values = {"conv0/W": np.ones([2, 3], np.float32), "other": np.zeros(1)}
    report = SmartInit(values).load(variables)
    assert report.loaded == ["conv0/W"]
    assert report.missing == ["global_step"]
    assert report.unused == ["other"]
    np.testing.assert_array_equal(variables["conv0/W"], 1)


def test_a_misfit_changes_nothing_and_is_said_with_both_sides(variables):
    values = {"conv0/W": np.ones([3, 2], np.float32), "global_step": np.int64(9)}
    with pytest.raises(LoadError, match=r"model float32 \(2, 3\), file float32 \(3, 2\)"):
        SmartInit(values).load(variables)
    assert int(variables["global_step"]) == 7
    report = SmartInit(values, ignore_mismatch=True).load(variables)
    assert report.loaded == ["global_step"]
    assert len(report.mismatched) == 1


def test_nothing_loads_nothing(variables):
    assert SmartInit(None).load(variables).loaded == []
    assert SmartInit("").load(variables).loaded == []
    with pytest.raises(TypeError, match="expected a path"):
        SmartInit(3)


def test_B6_a_pickled_npz_is_refused(tmp_path, variables):
    np.savez(tmp_path / "evil.npz", W=np.array([print], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        SmartInit(tmp_path / "evil.npz")

"""tensorpack's names for loading and saving values."""

import numpy as np
import pytest

from towerpack import (
    DictRestore,
    SaverRestore,
    SaverRestoreRelaxed,
    SmartInit,
    get_model_loader,
    load_chkpt_vars,
    save_chkpt_vars,
)
from towerpack._tensorflow import tf
from towerpack.checkpoint import LoadError, save_checkpoint


@pytest.fixture
def variables():
    return {
        "conv0/W": tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "global_step": tf.Variable(7, dtype=tf.int64),
    }


def test_equal_sizes_are_reshaped_from_dicts_and_relaxed_checkpoints_only(tmp_path, variables):
    values = {"conv0/W": np.ones([3, 2], np.float32)}
    report = DictRestore(values).load(variables)
    assert report.changed == {"conv0/W": "reshaped from [3, 2] to [2, 3]"}
    path = save_checkpoint(values, tmp_path / "model-1")
    with pytest.raises(LoadError, match="ignore_mismatch"):
        SaverRestore(path).load(variables)
    assert SaverRestoreRelaxed(path).load(variables).loaded == ["conv0/W"]
    with pytest.raises(TypeError, match="expected a dict"):
        DictRestore(path)


def test_the_prefix_and_the_names_to_ignore(tmp_path, variables):
    path = save_checkpoint({"W": np.zeros([2, 3]), "x": np.ones(1)}, tmp_path / "model-1")
    report = SaverRestore(path, prefix="conv0", ignore=["x:0"]).load(variables)
    assert (report.loaded, report.unused) == (["conv0/W"], [])


def test_the_other_names(tmp_path):
    path = save_chkpt_vars({"W": np.ones(2)}, tmp_path / "a.npz")
    assert load_chkpt_vars(path)["W"].tolist() == [1, 1]
    assert get_model_loader is SmartInit

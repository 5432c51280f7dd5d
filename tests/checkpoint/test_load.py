import re

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_flow
from towerpack import optimizer
from towerpack._tensorflow import tf
from towerpack.callbacks import EMA
from towerpack.checkpoint import (
    ChainInit,
    LoadError,
    SmartInit,
    load_checkpoint_vars,
    save_checkpoint,
    save_checkpoint_vars,
)
from towerpack.checkpoint.directory import write_state
from towerpack.checkpoint.variables import model_variables
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config


@pytest.fixture
def variables():
    return {
        "conv0/W": tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "global_step": tf.Variable(7, dtype=tf.int64),
    }


def test_the_report_says_what_was_loaded_missing_and_unused(variables):
    values = {"conv0/W": np.ones([2, 3], np.float32), "other": np.zeros(1)}
    report = SmartInit(values).load(variables)
    assert report.loaded == ["conv0/W"]
    assert report.missing == ["global_step"]
    assert report.unused == ["other"]
    assert not report.complete
    assert "other" in report.table()
    np.testing.assert_array_equal(variables["conv0/W"], 1)


def test_a_misfit_changes_nothing_and_is_said_with_both_sides(variables):
    values = {"conv0/W": np.ones([3, 3], np.float32), "global_step": np.int64(9)}
    misfit = r"nothing was loaded:\n.*model has float32 \[2, 3\], the file float32 \[3, 3\]"
    with pytest.raises(LoadError, match=misfit):
        SmartInit(values).load(variables)
    assert int(variables["global_step"]) == 7
    report = SmartInit(values, ignore_mismatch=True).load(variables)
    assert report.loaded == ["global_step"]
    assert list(report.mismatched) == ["conv0/W"]


def test_equal_sizes_are_reshaped_from_dicts_and_on_request(tmp_path, variables):
    values = {"conv0/W": np.ones([3, 2], np.float32)}
    report = SmartInit(values).load(variables)
    assert report.changed == {"conv0/W": "reshaped from [3, 2] to [2, 3]"}
    path = save_checkpoint(values, tmp_path / "model-1")
    with pytest.raises(LoadError, match="ignore_mismatch"):
        SmartInit(path).load(variables)
    assert SmartInit(path, ignore_mismatch=True).load(variables).loaded == ["conv0/W"]


@pytest.mark.parametrize(
    ("saved", "wanted", "fits"),
    [
        ("float64", "float32", True),
        ("float16", "float32", True),
        ("bfloat16", "float32", True),
        ("float32", "bfloat16", True),
        ("int32", "int64", True),
        ("int64", "int32", False),
        ("float32", "int32", False),
        ("int32", "float32", False),
        ("bool", "float32", False),
        ("uint8", "int16", True),
        ("int8", "uint16", False),
    ],
)
def test_floats_are_cast_and_integers_widened(tmp_path, saved, wanted, fits):
    value = tf.cast([1, 0], saved).numpy()
    path = save_checkpoint({"v": value}, tmp_path / "model-1")
    variable = tf.Variable(tf.zeros([2], wanted))
    report = SmartInit(path, ignore_mismatch=True).load({"v": variable})
    assert report.loaded == (["v"] if fits else [])
    if fits:
        assert report.changed["v"] == f"cast from {saved} to {wanted}"
        assert variable.numpy().tolist() == [1, 0]


def test_B4_resuming_is_strict_with_a_full_table(tmp_path, variables):
    saved = {"conv0/W": np.ones([2, 4], np.float32), "gone": np.ones(1)}
    path = save_checkpoint(saved, tmp_path / "model-1")
    with pytest.raises(LoadError) as caught:
        SmartInit(path).load(variables, strict=True)
    text = str(caught.value)
    assert re.search(r"mismatched +conv0/W +the model has float32 \[2, 3\]", text)
    assert re.search(r"missing in the file +global_step", text)
    assert re.search(r"unused +gone", text)
    assert "ignore_mismatch" in text
    assert int(variables["global_step"]) == 7
    # A cast is no exact resume either.
    exact = {"conv0/W": np.zeros([2, 3], np.float64), "global_step": np.int64(1)}
    with pytest.raises(LoadError, match="cast from float64"):
        SmartInit(exact).load(variables, strict=True)
    exact["conv0/W"] = np.zeros([2, 3], np.float32)
    assert SmartInit(exact).load(variables, strict=True).complete


def test_a_slot_never_comes_without_its_variable():
    variables = {
        "fc/W": tf.Variable(tf.zeros([3])),
        "fc/W/Adam": tf.Variable(tf.zeros([3])),
        "fc/b": tf.Variable(0.0),
        "fc/b/Adam": tf.Variable(0.0),
    }
    saved = {"fc/W": np.ones(2), "fc/W/Adam": np.ones(3), "fc/b": 1.0, "fc/b/Adam": 1.0}
    report = SmartInit(saved, ignore_mismatch=True).load(variables)
    assert report.loaded == ["fc/b", "fc/b/Adam"]
    assert report.withheld == ["fc/W/Adam"]
    assert not variables["fc/W/Adam"].numpy().any()
    # One that the model does not have is left over.
    only = {"fc/b": variables["fc/b"]}
    report = SmartInit(saved).load(only)
    assert report.unused == ["fc/W", "fc/W/Adam", "fc/b/Adam"]


OPTIMIZERS = {
    "v1 Adam": lambda: tf.compat.v1.train.AdamOptimizer(0.1),
    "fused": lambda: optimizer.Adam(0.1),
    "accumulated": lambda: optimizer.AccumGradOptimizer(optimizer.LAMB(0.1), 2),
    "Keras Adam": lambda: tf.keras.optimizers.Adam(0.1),
    "Keras with averages": lambda: tf.keras.optimizers.SGD(0.1, 0.9, use_ema=True),
    "Keras scaled": lambda: tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.Adam(0.1)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_slots_of_every_library_and_averages_stay_with_their_variable(kind, capsys):
    """Names as runs make them: what is loaded for `fc/W` is nothing, or all that belongs to it."""

    class Model(TinyModel):
        def optimizer(self):
            return OPTIMIZERS[kind]()

    trainer = SimpleTrainer(jit=False)
    config = TrainConfig(
        model=Model(),
        dataflow=tiny_flow(),
        callbacks=[EMA(0.9)],
        extra_callbacks=[],
        monitors=[],
        max_epoch=1,
    )
    launch_train_with_config(config, trainer)
    variables = trainer.store.saved()
    assert set(model_variables(variables)) == {"fc/W", "fc/b"}
    saved = {name: np.ones_like(variable.numpy()) for name, variable in variables.items()}
    saved["fc/W"] = np.ones([4, 7], np.float32)
    before = {name: variable.numpy() for name, variable in variables.items()}
    report = SmartInit(saved, ignore_mismatch=True).load(variables)
    slots = [n for n in variables if "fc/W/" in n or "fc_W" in n]
    assert report.withheld == sorted(slots) != []
    for name in ["fc/W", *slots]:
        np.testing.assert_array_equal(variables[name], before[name])
    assert set(report.loaded) == set(variables) - {"fc/W", *slots}
    # A model without its optimizer's variables is what people publish: no reason to warn.
    capsys.readouterr()
    report = SmartInit(model_variables(before)).load(variables)
    said = capsys.readouterr().err
    assert f"missing in the file  {len(report.missing)} slots, averages and counters" in said
    assert "WRN" not in said


def test_a_chain_says_once_what_all_did_and_withheld(capsys):
    variables = {"fc/W": tf.Variable(tf.zeros([3])), "fc/W/Adam": tf.Variable(tf.zeros([3]))}
    SmartInit([{"fc/W/Adam": np.ones(3)}, {"fc/W": np.ones(3, np.float32)}]).load(variables)
    said = capsys.readouterr().err
    assert "1 variable loaded from a dict, a dict" in said
    assert "missing in the file" not in said
    report = SmartInit([{"fc/W/Adam": np.ones(3)}, {"other": np.ones(3)}]).load(variables)
    assert (report.loaded, report.missing, report.withheld) == ([], ["fc/W"], ["fc/W/Adam"])


def test_a_subset_under_other_names(variables):
    values = {"net/W": np.ones([2, 3]), "net/step": np.int64(3), "head/W": np.ones(9)}
    loader = SmartInit(values, only="net/", rename={"net/W": "conv0/W", "net/step": "global_step"})
    assert loader.load(variables, strict=False).loaded == ["conv0/W", "global_step"]
    renamed = SmartInit(values, rename=lambda name: "conv0/W" if name == "net/W" else None)
    report = renamed.load(variables)
    assert (report.loaded, report.unused) == (["conv0/W"], [])
    report = SmartInit({"W": np.zeros([2, 3])}, prefix="conv0", ignore="step").load(variables)
    assert report.loaded == ["conv0/W"]


def test_what_was_not_chosen_is_not_said_to_be_missing_in_the_file(variables, capsys):
    values = {"conv0/W": np.ones([2, 3], np.float32), "global_step": np.int64(3)}
    report = SmartInit(values, ignore="conv0/*").load(variables)
    assert report.missing == report.not_chosen == ["conv0/W"]
    assert "conv0/W  it is in the file but was not chosen" in capsys.readouterr().err


def test_a_chain_loads_one_after_the_other(tmp_path, variables):
    path = save_checkpoint({"conv0/W": np.full([2, 3], 5.0)}, tmp_path / "model-1")
    report = SmartInit([{"global_step": np.int64(1), "conv0/W": np.ones([2, 3])}, path]).load(
        variables
    )
    assert report.loaded == ["conv0/W", "global_step"]
    assert report.missing == []
    np.testing.assert_array_equal(variables["conv0/W"], 5)
    assert isinstance(SmartInit([path]), ChainInit)


def test_nothing_loads_nothing(variables):
    assert SmartInit(None).load(variables).loaded == []
    assert SmartInit("").load(variables).loaded == []
    with pytest.raises(TypeError, match="expected a path"):
        SmartInit(3)
    with pytest.raises(FileNotFoundError, match="model-1"):
        SmartInit("model-1")
    loader = SmartInit({"x": 1})
    assert SmartInit(loader) is loader


def test_F11_a_damaged_latest_is_said_and_the_previous_loaded(tmp_path, variables):
    for step in (1, 2):
        save_checkpoint(
            {"conv0/W": np.full([2, 3], step, np.float32), "global_step": np.int64(step)},
            tmp_path / f"model-{step}",
            run={},
        )
    write_state(tmp_path, ["model-1", "model-2"])
    data = tmp_path / "model-2.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[5] ^= 4
    data.write_bytes(content)
    report = SmartInit(tmp_path).load(variables, strict=True)
    assert report.source == str(tmp_path / "model-1")
    assert int(variables["global_step"]) == 1
    assert load_checkpoint_vars(tmp_path)["global_step"] == 1
    with pytest.raises(ValueError, match="the tensor 'conv0/W' is damaged"):
        SmartInit(tmp_path / "model-2").load(variables)
    assert int(variables["global_step"]) == 1


def test_dicts_go_to_files_and_back(tmp_path):
    saved = {"fc/W:0": np.ones([2, 3], np.float32), "step": np.int64(3)}
    for name in ("a.npz", "a.safetensors", "a"):
        path = save_checkpoint_vars(saved, tmp_path / name)
        loaded = load_checkpoint_vars(path)
        assert set(loaded) == {"fc/W", "step"}
        assert loaded["fc/W"].dtype == np.float32
        assert loaded["step"].shape == ()
    for name in ("a.h5", "a.keras", "model-1.index"):
        with pytest.raises(ValueError, match=f"expected a name ending in .npz .*{name}"):
            save_checkpoint_vars(saved, tmp_path / name)


def test_loading_from_a_run_logs_its_step_counter_and_learning_rate(capsys):
    variables = {
        "w": tf.Variable([0.0]),
        "global_step": tf.Variable(0, dtype=tf.int64),
        "learning_rate": tf.Variable(0.5),
    }
    saved = {"w": np.float32([1.0]), "global_step": np.int64(70), "learning_rate": np.float32(0.25)}
    SmartInit(saved).load(variables)
    written = " ".join(capsys.readouterr().err.split())
    assert "sets global_step from 0 to 70 and learning_rate from 0.5 to 0.25" in written
    assert "ignore=['global_step', 'learning_rate']" in written
    SmartInit(saved, ignore=["global_step", "learning_rate"]).load(variables)
    SmartInit(saved).load(variables, strict=True)  # a run that is resumed
    assert "sets" not in capsys.readouterr().err

"""`towerpack summary` for every kind of target."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.tiny_model import TinyModel
from towerpack._tensorflow import tf
from towerpack.checkpoint import save_checkpoint
from towerpack.cli import app
from towerpack.models import model_summary

PROGRAM = """
import tensorflow as tf
from towerpack import FullyConnected, ModelDesc, TrainConfig, optimizer
from tests.tiny_model import tiny_flow

class Model(ModelDesc):
    def __init__(self, units):
        self.units = units

    def inputs(self):
        return [tf.TensorSpec([None, 4], tf.float32, "x")]

    def build_graph(self, x):
        return tf.reduce_sum(FullyConnected("last", FullyConnected("first", x, self.units), 1))

    def optimizer(self):
        return optimizer.Adam(0.01)

def get_config(units: int = 7):
    return TrainConfig(model=Model(units), dataflow=tiny_flow())
"""
MODEL = "from tests.tiny_model import TinyModel\n\nclass Mine(TinyModel): ...\n"


def summary(*arguments, code=0):
    result = CliRunner().invoke(app, ["summary", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_of_a_program_with_its_settings_and_a_picture(tmp_path):
    file, picture = tmp_path / "program.py", tmp_path / "model.svg"
    file.write_text(PROGRAM)
    table = summary(file, "units=9", "--picture", picture)
    assert "first              FullyConnected  [None, 9]          45     81    36 B\n" in table
    assert "55 of 55 parameters are trained" in table
    assert f"drawn to {picture}" in table
    assert "<svg" in picture.read_text()
    assert "'units'" in summary(file, "unit=9", code=2)


def test_of_a_model_in_a_file(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    expected = str(model_summary(TinyModel()))
    assert summary(file).strip() == summary(f"{file}:Mine").strip() == expected
    assert "define get_config or config to take keys" in summary(file, "a=1", code=2)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
def test_of_a_keras_file(tmp_path):
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input([4]), layers.Dense(3, name="d")], name="net")
    model.save(tmp_path / "net.keras")
    assert summary(tmp_path / "net.keras").strip() == str(model_summary(model))
    assert "key=value only after FILE.py" in summary(tmp_path / "net.keras", "a=1", code=2)


def test_of_a_run_and_of_a_checkpoint(tmp_path):
    values = {"fc/W": [[1.0, 2.0]], "fc/b": [0.0, 0.0], "fc/W/Adam": [[0.0, 0.0]], "global_step": 3}
    variables = {name: tf.Variable(value) for name, value in values.items()}
    prefix = save_checkpoint(variables, tmp_path / "model-1")
    for target in (prefix, tmp_path):
        table = summary(target)
        assert "fc     variables  [1, 2], [2]           4      ?" in table
        assert "memory: weights 16 B, state 0 B, optimizer 12 B" in table
        assert "FLOPs are unknown, and so is what is trained" in table
    stored = model_summary(TinyModel())
    (tmp_path / "model.json").write_text(json.dumps(stored.to_dict()))
    assert summary(tmp_path).strip() == summary(prefix).strip() == str(stored)
    (tmp_path / "model.json").write_text('{"rows": 1}')
    assert "model.json is not the table of a model" in summary(tmp_path, code=1)


@pytest.mark.parametrize("target", ["missing.py", "missing.keras", "missing"])
def test_what_is_missing_is_one_line(target, tmp_path):
    lines = summary(tmp_path / target, code=2 if target.endswith(".py") else 1).splitlines()
    assert "missing" in " ".join(lines)

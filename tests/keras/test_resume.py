"""Runs of `fit` that are killed, and resumed by the same command."""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import towerpack
from tests.keras.beside_fit import LABELS, X, keras, started
from tests.keras.test_data import LINEAR, Y1

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def run(directory, *after, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tests.keras.victim", str(directory), *map(str, after)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def result(directory):
    with np.load(directory / "result.npz", allow_pickle=False) as saved:
        return dict(saved)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "within_epoch, kills",
    [
        pytest.param("", [7], id="every epoch", marks=pytest.mark.soak),
        pytest.param("1", [6, 9], id="every 2 steps"),
    ],
)
def test_a_run_that_is_killed_equals_one_that_was_not_bit_for_bit(tmp_path, within_epoch, kills):
    whole = run(tmp_path / "whole", WITHIN_EPOCH=within_epoch)
    assert whole.returncode == 0, whole.stderr
    parts = tmp_path / "parts"
    for after in kills:  # batches of a process; 4 in an epoch
        killed = run(parts, after, WITHIN_EPOCH=within_epoch)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (parts / "result.npz").exists()
    resumed = run(parts, WITHIN_EPOCH=within_epoch)
    assert resumed.returncode == 0, resumed.stderr
    expected, found = result(tmp_path / "whole"), result(parts)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    rows = (parts / "log.csv").read_text().splitlines()
    epochs = [int(row["epoch"]) for row in csv.DictReader(rows)]
    assert sorted(set(epochs)) == expected["epoch"].tolist()


def fit(epochs, callbacks=(), **options):
    model = started(LINEAR)
    history = towerpack.keras.fit(
        model, X, Y1, 4, epochs, verbose=0, callbacks=list(callbacks), logdir="run", **options
    )
    return model, history


def test_a_finished_run_gives_its_weights_and_history_at_once():
    model, history = fit(2)
    again, found = fit(2, resume="auto")
    assert found.history == history.history
    for one, two in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    longer, found = fit(3, resume="auto")
    assert found.epoch == [0, 1, 2]
    assert found.history["loss"][:2] == history.history["loss"]
    assert np.any(longer.get_weights()[0] != model.get_weights()[0])


def test_a_run_that_a_callback_has_stopped_stays_stopped():
    def stop():
        return keras.callbacks.EarlyStopping("loss", mode="max", restore_best_weights=True)

    model, history = fit(9, [stop()])
    assert 1 < len(history.epoch) < 9
    again, found = fit(9, [stop()], resume="auto")
    assert found.history == history.history
    for one, two in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_other_callbacks_than_before_are_reported(capfd):
    fit(1, [keras.callbacks.EarlyStopping("loss")])
    fit(2, [keras.callbacks.ReduceLROnPlateau("loss")], resume="auto")
    assert "the states of Keras callbacks are not restored" in capfd.readouterr().err


def test_resume_needs_a_directory():
    with pytest.raises(ValueError, match="resume='auto' needs a directory"):
        towerpack.keras.fit(started(LINEAR), X, LABELS, resume="auto")

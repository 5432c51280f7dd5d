"""Keras callbacks in a run of towerpack: which events they get, what they may do, what is saved."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

import towerpack
from tests.keras.beside_fit import (
    CASES,
    Y1,
    Recorder,
    X,
    assert_same,
    by_keras,
    by_us,
    keras,
    started,
)
from tests.keras.test_data import LINEAR
from towerpack.callbacks import Callback
from towerpack.keras.events import acts_on_batches, plain

kinds = keras.callbacks
CLASSIFIER = CASES["sequential"]
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


class Stops(kinds.Callback):
    """Ends training within the second epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations >= 6:
            self.model.stop_training = True


class Calls(Callback):
    """Counts the calls of the step function."""

    def __init__(self):
        self.count = 0

    def _trigger_step(self):
        self.count += 1

    def _next_due(self):
        return None


def test_a_callback_that_stops_within_an_epoch_ends_it_as_fit_does():
    ours, theirs = ([Stops(), Recorder()] for _ in range(2))
    assert_same(by_us(CLASSIFIER, callbacks=ours), by_keras(CLASSIFIER, callbacks=theirs))
    assert [e[:2] for e in ours[1].events] == [e[:2] for e in theirs[1].events]


def test_files_of_callbacks_equal_those_of_keras():
    def callbacks(name):
        return [
            kinds.CSVLogger(f"{name}.csv"),
            kinds.ModelCheckpoint(f"{name}.{{epoch}}.weights.h5", save_weights_only=True),
            kinds.TensorBoard(name, write_graph=False, histogram_freq=1),
            kinds.SwapEMAWeights(),
        ]

    case = CASES["use_ema"]
    ours, _ = by_us(case, callbacks=callbacks("ours"))
    by_keras(case, callbacks=callbacks("theirs"))
    one, two = (
        list(csv.reader(Path(f"{name}.csv").read_text().splitlines()))
        for name in ("ours", "theirs")
    )
    assert one[0] == two[0]
    np.testing.assert_allclose(*(np.array(c[1:], float) for c in (one, two)), atol=1e-5)
    saved = []
    for name in ("ours", "theirs"):
        ours.load_weights(f"{name}.1.weights.h5")
        saved.append(ours.get_weights())
        assert sorted(p.name for p in Path(name).iterdir()) == ["train", "validation"]
    for a, b in zip(*saved, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_steps_run_fused_unless_a_callback_acts_on_every_batch():
    counts = {}
    for name, callbacks in {
        "fused": [kinds.EarlyStopping("loss", patience=9), kinds.TerminateOnNaN()],
        "each": [kinds.LambdaCallback(on_train_batch_end=lambda batch, logs: None)],
    }.items():
        calls = Calls()
        trainer = towerpack.KerasTrainer(steps_per_call=8)
        model = started(LINEAR)
        towerpack.keras.fit(
            model, np.tile(X, (8, 1)), np.tile(Y1, (8, 1)), 11, epochs=2, verbose=0,
            callbacks=[*callbacks, calls], trainer=trainer,
        )  # fmt: skip
        counts[name] = calls.count
    assert counts == {"fused": 4, "each": 32}


def test_the_reason_why_steps_run_one_by_one_is_logged(capfd):
    options = {"callbacks": [Recorder()], "epochs": 1}
    by_us(LINEAR, x=X, y=Y1, **options)
    assert "one by one, not many in one call, because RecordsBatches acts" in capfd.readouterr().err


def test_which_callbacks_act_on_batches():
    board = {"profile_batch": 0}
    fused = [
        kinds.ModelCheckpoint("a.keras"), kinds.TensorBoard("a", **board), kinds.History(),
        kinds.CSVLogger("a"), kinds.LearningRateScheduler(abs), kinds.TerminateOnNaN(),
        kinds.LambdaCallback(on_epoch_end=print), Recorder(batches=False),
    ]  # fmt: skip
    each = [
        kinds.ModelCheckpoint("a.keras", save_freq=3), kinds.TensorBoard("a", 0, update_freq=2),
        kinds.TensorBoard("a", profile_batch=2), Stops(), Recorder(),
        kinds.LambdaCallback(on_train_batch_begin=print),
    ]  # fmt: skip
    assert not any(map(acts_on_batches, fused))
    assert all(map(acts_on_batches, each))


def test_NaN_raises_unless_TerminateOnNaN_is_there(capfd):
    x, y = CLASSIFIER.x.copy(), CLASSIFIER.y
    x[9] = math.nan
    options = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}
    model = started(CLASSIFIER)
    with pytest.raises(towerpack.NonFiniteCost, match="the cost of step 3 is not finite"):
        towerpack.keras.fit(model, x, y, **options)
    ours, theirs = started(CLASSIFIER), started(CLASSIFIER)
    history = towerpack.keras.fit(ours, x, y, callbacks=[kinds.TerminateOnNaN()], **options)
    expected = theirs.fit(x, y, callbacks=[kinds.TerminateOnNaN()], **options)
    assert history.epoch == expected.epoch == [0]
    np.testing.assert_equal(history.history["loss"], expected.history["loss"])
    with pytest.raises(RuntimeError, match="NaN or infinity"):
        towerpack.keras.fit(
            started(CLASSIFIER), x, y, callbacks=[kinds.TerminateOnNaN(raise_error=True)], **options
        )
    assert "terminating training" in capfd.readouterr().err


def test_BackupAndRestore_is_refused_with_the_cure():
    with pytest.raises(ValueError, match="Pass logdir='directory', resume='auto'"):
        by_us(LINEAR, x=X, y=Y1, callbacks=[kinds.BackupAndRestore("backup")])


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_the_console_shows_what_keras_shows(verbose, capfd):
    model = started(LINEAR)
    towerpack.keras.fit(model, X, Y1, 4, epochs=2, verbose=verbose, validation_split=0.3)
    out, err = capfd.readouterr()
    assert err == ""
    assert [line for line in out.splitlines() if line.startswith("Epoch")] == (
        ["Epoch 1/2", "Epoch 2/2"] if verbose else []
    )
    assert out.count("val_loss:") == (2 if verbose else 0)


def test_what_of_an_attribute_a_checkpoint_stores():
    value = {"a": [1, 2.5, None, True, ("x", np.float32(0.5))]}
    assert plain(value) == {"a": [1, 2.5, None, True, ["x", 0.5]]}
    for other in (object(), {1: 2}, np.zeros(3), [abs]):
        with pytest.raises(TypeError):
            plain(other)

"""Ending training: at a limit, without improvement, or at NaN and infinity."""

import numpy as np
import pytest

from tests.callbacks.training import STEPS, Model, putting, run
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    Callback,
    CheckNumerics,
    EarlyStopping,
    ModelSaver,
    StopAt,
    TerminateOnNaN,
)
from towerpack.core import logger


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([5, 4, 3, 2, 1, 0], {"patience": 1}, 6),
        ([5, 4, 4, 4, 4, 4], {"patience": 2}, 4),
        ([5, 4, 3.99, 3.98, 0, 0], {"patience": 2, "min_delta": 0.1}, 4),
        ([1, 2, 2, 2, 2, 2], {"patience": 3, "reverse": True}, 5),
        ([float("nan")] * 6, {"patience": 3}, 3),
    ],
)
def test_early_stopping(values, options, epochs):
    result = run([EarlyStopping("error", **options), putting(values)][::-1], epochs=6)
    assert result.trainer.epoch_num == epochs
    assert len(result.saved) == epochs  # others have seen the last epoch, and saved


def test_early_stopping_goes_on_waiting_after_a_restart():
    values = [5, 5, 5, 5, 5, 5]
    whole = run([putting(values), EarlyStopping("error", patience=3)], epochs=6)
    resumed = run(
        [putting(values), EarlyStopping("error", patience=3)], epochs=6, resume=whole.saved[1]
    )
    assert whole.trainer.epoch_num == resumed.trainer.epoch_num == 4


@pytest.mark.parametrize(
    ("when", "step"),
    [(8, 8), ("8 steps", 8), (STEPS, STEPS), ("2 epochs", 2 * STEPS)],
)
def test_stop_at_steps_and_epochs(when, step):
    result = run([StopAt(when)], epochs=5)
    assert result.trainer.global_step == step
    assert len(result.saved) == step // STEPS


def test_what_is_stopped_in_the_middle_of_an_epoch_is_saved(directory):
    run([ModelSaver(), StopAt(STEPS + 2)], epochs=5)
    saved = sorted(path.stem for path in directory.glob("model-*.index"))
    assert saved == [f"model-{STEPS}", f"model-{STEPS + 2}"]
    run([ModelSaver(checkpoint_dir=directory / "b"), StopAt(STEPS)], epochs=5)
    assert [path.stem for path in (directory / "b").glob("model-*.index")] == [f"model-{STEPS}"]


def test_stop_at_a_time_and_behind_a_resumed_model():
    assert run([StopAt("0.0001 s")], epochs=5).trainer.global_step <= STEPS
    first = run([], epochs=2)
    assert run([StopAt(STEPS)], epochs=5, resume=first.saved[1]).trainer.global_step == 2 * STEPS


class Breaking(Callback):
    """Breaks a weight after a step."""

    def __init__(self, step):
        self.step = step

    def _trigger_step(self):
        if self.global_step == self.step:
            bias = self.trainer.store["fc/b"]
            bias.assign([np.nan, 0, 0])


class Unused(Model):
    """A variable that the cost does not see may break without a trace."""

    def build_graph(self, x, label):
        cost = super().build_graph(x, label)
        tf.math.log(tf.zeros([2]) * tf.reduce_mean(x) - tf.constant([1.0, 0.0]), name="broken")
        return cost


def test_F14_a_variable_that_is_not_finite_is_named_at_the_trigger():
    with pytest.raises(FloatingPointError, match=rf"after step {STEPS} .*\['fc/b'\]"):
        run([Breaking(STEPS), CheckNumerics()], epochs=2)
    run([Breaking(STEPS), CheckNumerics(run_as_trigger=False)], epochs=1)


def test_F14_a_variable_that_is_not_finite_is_named_in_the_step():
    with pytest.raises(FloatingPointError, match=r"after step 2 .*\['fc/b'\]"):
        run([Breaking(2), CheckNumerics(run_step=True)], epochs=2)


def test_F14_a_named_tensor_that_is_not_finite_stops_in_its_step():
    with pytest.raises(FloatingPointError, match="'broken' is not finite in step 1: 2 of 2"):
        run([TerminateOnNaN("broken")], model=Unused())
    with pytest.raises(FloatingPointError, match=f"'broken' is not finite in step {STEPS}"):
        run([TerminateOnNaN("broken", run_step=False)], model=Unused())
    run([TerminateOnNaN("prob")], model=Unused())


def test_F14_tensorflow_names_the_operation_and_the_line():
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match="test_stopping.py") as error:
            run([CheckNumerics()], model=Unused())
    finally:
        tf.debugging.disable_check_numerics()
    assert "Log" in str(error.value)

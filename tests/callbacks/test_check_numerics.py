import numpy as np
import pytest

from tests.callbacks.training import STEPS, Model, run
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, CheckNumerics, TerminateOnNaN


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
        with pytest.raises(tf.errors.InvalidArgumentError, match="test_check_numerics.py") as error:
            run([CheckNumerics()], model=Unused())
    finally:
        tf.debugging.disable_check_numerics()
    assert "Log" in str(error.value)

"""Many steps in one call are the same steps."""

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.train.test_multi_gpu import Model, assert_close, data, trained
from towerpack import optimizer
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, ProgressBar
from towerpack.dataflow import DataFromArrays, MapData
from towerpack.models import GRU, LSTM, Dropout
from towerpack.train import SimpleTrainer
from towerpack.train.autotune import COMPILED, LOOP, STEP, WINDOWS, Autotune, Plan


class Dropping(Model):
    def build_graph(self, x, y):
        return super().build_graph(Dropout(x, rate=0.3), y)

    def optimizer(self):
        return optimizer.Adam(0.01)


def test_fused_steps_equal_single_ones_bit_for_bit():
    one = trained(SimpleTrainer(steps_per_call=1), 16, Dropping(), steps=40)
    many = trained(SimpleTrainer(steps_per_call=7), 16, Dropping(), steps=40)
    assert_close(one, many, tolerance=0)


def test_compiled_steps_equal_single_ones_to_rounding():
    one = trained(SimpleTrainer(steps_per_call=1), 16, steps=80)
    compiled = trained(SimpleTrainer(jit=True), 16, steps=80)
    assert_close(one, compiled)


def test_a_model_with_random_numbers_is_not_compiled_by_itself():
    trainer = SimpleTrainer()
    trained(trainer, 16, Dropping(), steps=2)
    assert COMPILED not in trainer.autotune.trials
    plain = SimpleTrainer()
    trained(plain, 16, steps=2)
    assert COMPILED in plain.autotune.trials


def test_compiled_steps_with_a_smaller_last_batch():
    flow = data(40)
    one = trained(SimpleTrainer(steps_per_call=1), 16, steps=20, flow=flow)
    compiled = trained(SimpleTrainer(jit=True), 16, steps=20, flow=flow)
    assert_close(one, compiled)


class Alternating(SimpleTrainer):
    """Runs its steps in compiled calls and in others, by turns, each as long as it may be."""

    def make_autotune(self, step):
        class InTurn(Autotune):
            calls, rows = 0, 32

            def plan(self, free):
                self.calls += 1
                if self.calls % 2:
                    return Plan(COMPILED, min(free, self.rows), self.rows)
                return Plan(LOOP, free, self.rows)

        return InTurn([LOOP, COMPILED])


def test_compiled_and_other_calls_by_turns():
    one = trained(SimpleTrainer(steps_per_call=1), 16, steps=1200)
    assert_close(one, trained(Alternating(), 16, steps=1200), tolerance=1e-4)


class Watching(Callback):
    """Sees chosen steps."""

    def __init__(self, every):
        self.every, self.seen, self.calls = every, [], []

    def _next_due(self):
        return (self.global_step // self.every + 1) * self.every

    def _before_run(self):
        return ["cost"]

    def _after_run(self, values):
        self.seen.append((self.global_step, float(values[0])))

    def _trigger_step(self):
        self.calls.append(self.global_step)


def test_steps_that_somebody_watches_run_by_themselves():
    every_step, some = Watching(1), Watching(7)
    trained(SimpleTrainer(steps_per_call=5), 16, steps=20, callbacks=[every_step])
    trained(SimpleTrainer(steps_per_call=5), 16, steps=20, callbacks=[some])
    assert [step for step, _ in every_step.seen] == list(range(1, 21))
    assert some.seen == [pair for pair in every_step.seen if pair[0] in (7, 14)]
    # Calls end before an observed step, and with the epoch, whose last step is the tenth. They may
    # be shorter than 5 steps, where the batches that are stacked end.
    assert {6, 7, 10, 13, 14, 20} <= set(some.calls)
    assert all(0 < after - before <= 5 for before, after in pairwise([0, *some.calls]))


class Counting(SimpleTrainer):
    """Notes before which steps it called."""

    def _done(self, outcome, batches):
        self.__dict__.setdefault("calls", []).append(self.global_step)
        return super()._done(outcome, batches)


def test_a_progress_bar_does_not_stop_fusion():
    trainer = Counting(steps_per_call=5)
    trained(trainer, 16, steps=20, callbacks=[ProgressBar()])
    assert trainer.calls == [0, 5, 10, 15]


def test_where_data_is_late_some_steps_wait_for_each_other(monkeypatch):
    monkeypatch.setattr("towerpack.train.autotune.op_determinism_enabled", lambda: True)

    def late(datapoint):
        time.sleep(0.001)
        return datapoint

    trainer, prompt = Counting(), SimpleTrainer(steps_per_call=1)
    one = trained(trainer, 16, steps=40, flow=MapData(data(), late))
    assert_close(one, trained(prompt, 16, steps=40), tolerance=0)
    assert len(trainer.calls) < 30  # 10, if nothing else slows this machine down


def test_with_op_determinism_nothing_is_measured(monkeypatch):
    monkeypatch.setattr("towerpack.train.autotune.op_determinism_enabled", lambda: True)
    trainer = SimpleTrainer()
    trained(trainer, 16)
    assert trainer.state()["mode"] == LOOP


def test_op_determinism_is_asked_rightly():
    """In a process of its own: it cannot be switched off again."""
    import subprocess
    import sys

    code = (
        "from towerpack.tower.determinism import op_determinism_enabled as asked\n"
        "import tensorflow as tf\n"
        "before = asked(); tf.config.experimental.enable_op_determinism(); print(before, asked())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def run_autotune(autotune, seconds, calls=60):
    for _ in range(calls):
        plan = autotune.plan(1000)
        autotune.note(plan.mode, plan.steps, seconds[plan.mode] * plan.steps)
    return autotune


def test_the_fastest_mode_is_kept():
    seconds = {STEP: 0.002, LOOP: 0.001, COMPILED: 0.003}
    assert run_autotune(Autotune([STEP, LOOP, COMPILED]), seconds, 2000).chosen == LOOP
    seconds[COMPILED] = 0.0005
    assert run_autotune(Autotune([STEP, LOOP, COMPILED]), seconds, 2000).chosen == COMPILED


def test_a_busy_moment_does_not_decide():
    autotune = Autotune([STEP, LOOP])
    for call in range(2000):
        mode, steps = autotune.plan(1000)[:2]
        disturbed = 10 if mode == LOOP and call % 3 else 1
        autotune.note(mode, steps, {STEP: 0.002, LOOP: 0.001}[mode] * steps * disturbed)
    assert autotune.chosen == LOOP


def test_a_trial_of_a_much_slower_mode_is_abandoned():
    """A tiny GAN whose compiled step took 0.1 s instead of 1 ms lost 20 s."""
    autotune, lost = Autotune([STEP, LOOP, COMPILED]), 0.0
    seconds = {STEP: 0.002, LOOP: 0.001, COMPILED: 0.1}
    while autotune.chosen is None:
        mode, steps = autotune.plan(1000)[:2]
        autotune.note(mode, steps, seconds[mode] * steps)
        lost += seconds[mode] * steps * (mode == COMPILED)
    assert autotune.chosen == LOOP
    assert lost < 3


def test_long_steps_are_run_one_by_one_at_once():
    autotune = run_autotune(Autotune([STEP, LOOP, COMPILED]), {STEP: 0.5}, WINDOWS + 1)
    assert autotune.chosen == STEP


def test_a_choice_is_kept_when_a_run_goes_on():
    autotune = Autotune([STEP, LOOP, COMPILED])
    autotune.restore(COMPILED)
    assert autotune.plan(100)[:3] == (COMPILED, 32, 32)
    other = Autotune([STEP, LOOP])
    other.restore(COMPILED)
    assert other.chosen is None


def test_the_rows_of_a_stack_follow_from_the_time_of_a_step_and_stay():
    autotune = run_autotune(Autotune([STEP, LOOP]), {STEP: 0.005, LOOP: 0.004}, 48)
    assert autotune.plan(1000)[:3] == (LOOP, 50, 50)
    autotune.note(LOOP, 50, 0.01)
    assert autotune.rows == 50


def test_a_model_that_cannot_be_compiled_is_trained_all_the_same():
    class Printing(Model):
        def build_graph(self, x, y):
            seen = tf.numpy_function(lambda: np.float32(0.0), [], tf.float32)
            seen.set_shape([])
            return super().build_graph(x, y) + tf.stop_gradient(seen)

    trainer = SimpleTrainer()
    trainer.make_autotune = lambda step: Autotune([COMPILED, LOOP])
    weights = trained(trainer, 16, Printing(), steps=20)
    assert_close(weights, trained(SimpleTrainer(steps_per_call=1), 16, steps=20))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="received 'yes'"):
        SimpleTrainer(jit="yes")
    with pytest.raises(ValueError, match="received 0"):
        SimpleTrainer(steps_per_call=0)


def test_compiled_calls_are_no_longer_than_their_stack_of_large_batches():
    """32 steps are planned before it is known that only 20 such batches fit into a stack."""
    wide = Model()
    wide.inputs = lambda: [
        tf.TensorSpec([None, 784], tf.float32, "x"),
        tf.TensorSpec([None], tf.float32, "y"),
    ]
    x = np.random.default_rng(0).normal(size=(1024, 784)).astype(np.float32)
    flow = DataFromArrays(x, x[:, 0].copy(), shuffle=False)
    one = trained(SimpleTrainer(steps_per_call=1), 256, wide, steps=80, flow=flow)
    assert_close(one, trained(SimpleTrainer(jit=True), 256, wide, steps=80, flow=flow))


def test_compiled_calls_are_no_longer_than_their_stack_of_slow_steps():
    slow = Autotune([STEP, COMPILED])
    for _ in range(WINDOWS + 1):
        slow.note(STEP, 10, 0.09)
    trainer = SimpleTrainer()
    trainer.make_autotune = lambda step: slow
    one = trained(SimpleTrainer(steps_per_call=1), 16, steps=80)
    assert_close(one, trained(trainer, 16, steps=80))


RECOMPILING = """
import sys
from towerpack.train import SimpleTrainer
from tests.train.test_multi_gpu import trained
trained(SimpleTrainer(jit=True), 16, steps=2 * 150)
"""


def test_steps_are_compiled_once_for_all_places_in_a_stack(tmp_path):
    """In a process of its own, since XLA reads once where it writes what it has compiled."""
    import os
    import subprocess
    import sys

    environment = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", RECOMPILING], cwd=root, env=environment, check=True)
    modules = [path.name for path in tmp_path.glob("module_*before_optimizations.txt")]
    assert len([name for name in modules if "compiled" in name]) == 1, modules


class Recurrent(Model):
    """The last output of a recurrent layer over batches, and sequences, of open size."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def inputs(self):
        return [tf.TensorSpec([None, None, 6], tf.float32, "x"), super().inputs()[1]]

    def build_graph(self, x, y):
        lengths = 1 + tf.cast(tf.abs(y), tf.int32) % 4
        last = self.layer("rnn", x, 4, return_sequences=False, sequence_length=lengths)
        return super().build_graph(tf.pad(last, [[0, 0], [0, 2]]), y)


@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_recurrent_layers_are_compiled_with_an_open_batch_size(layer):
    x = np.random.default_rng(0).normal(size=(40, 4, 6)).astype(np.float32)
    flow = DataFromArrays(x, x.sum((1, 2)), shuffle=False)
    one = trained(SimpleTrainer(steps_per_call=1), 16, Recurrent(layer), steps=20, flow=flow)
    compiled = trained(SimpleTrainer(jit=True), 16, Recurrent(layer), steps=20, flow=flow)
    assert_close(one, compiled)

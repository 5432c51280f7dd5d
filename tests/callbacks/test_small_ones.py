"""Callbacks that need a few lines each."""

import multiprocessing
import re
import sys
import threading
import types

import pytest

from tests.callbacks.training import STEPS, Model, run
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    Callback,
    CallbackFactory,
    Callbacks,
    EarlyStopping,
    EstimatedTimeLeft,
    GPUUtilizationTracker,
    GraphProfiler,
    HostMemoryTracker,
    InjectShell,
    ModelSaver,
    ModelSummary,
    PeakMemoryTracker,
    PeriodicCallback,
    Profiler,
    ProxyCallback,
    RunOp,
    RunUpdateOps,
    SendStat,
    StartProcOrThread,
    StopAt,
    ThroughputTracker,
    group,
    inject_shell,
)
from towerpack.core import logger
from towerpack.core.threads import StoppableThread


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


def putting(values, name="error"):
    return CallbackFactory(
        trigger=lambda self: self.trainer.monitors.put_scalar(name, values[self.epoch_num - 1])
    )


# --- made of functions, or of others


def test_a_callback_of_functions():
    seen = []
    factory = CallbackFactory(
        setup_graph=lambda self: seen.append("setup_graph"),
        before_train=lambda self: seen.append(("before_train", self.epoch_num)),
        trigger=lambda self: seen.append(("trigger", self.epoch_num)),
        after_train=lambda self: seen.append("after_train"),
    )
    assert run([factory], epochs=2).alone == []
    assert seen == [
        "setup_graph",
        ("before_train", 0),
        ("trigger", 1),
        ("trigger", 2),
        "after_train",
    ]


def test_a_proxy_says_what_it_stands_for():
    assert str(ProxyCallback(PeriodicCallback(RunUpdateOps(), 5))) == (
        "ProxyCallback(PeriodicCallback(RunUpdateOps))"
    )
    with pytest.raises(TypeError, match="expected a callback"):
        ProxyCallback(print)
    with pytest.raises(TypeError, match="expected callbacks"):
        Callbacks([print])


def test_slow_callbacks_are_named(monkeypatch, caplog):
    run([RunUpdateOps()], epochs=1)
    assert "callbacks took" not in caplog.text
    monkeypatch.setattr(group, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(group, "SLOW_SHARE", 0.0)
    run([RunUpdateOps()], epochs=1)
    assert re.search(r"callbacks took .* the most: RunUpdateOps .* s", caplog.text)


# --- the user's own


def test_run_op_takes_functions_of_nothing_and_of_the_trainer():
    calls, trainers = [], []
    counter = tf.Variable(0)
    result = run(
        [
            RunOp(lambda: calls.append(1)),
            RunOp(trainers.append, run_before=False),
            RunOp(tf.function(lambda: counter.assign_add(1)), run_step=True, run_as_trigger=False),
        ],
        epochs=2,
    )
    assert len(calls) == 3  # before training and after each epoch
    assert trainers == [result.trainer] * 2
    assert int(counter) == 1 + 2 * STEPS
    with pytest.raises(TypeError, match="lambda: or tf.function"):
        RunOp(tf.constant(1))


def test_a_command_gets_the_latest_values(tmp_path, caplog):
    path = tmp_path / "log"
    send = SendStat(f"echo {{error}} >> {path}", "error")
    run([putting([0.5, 0.25]), send], epochs=2)
    assert path.read_text().split() == ["0.5", "0.25"]
    run([SendStat("exit 3 # {missing}", ["missing"])], epochs=1)
    assert "nothing was logged as 'missing'" in caplog.text
    assert "failed with code 3" in caplog.text


@pytest.mark.parametrize("shell", ["ipython", "pdb"])
def test_a_shell_is_opened_when_the_file_appears(tmp_path, monkeypatch, shell):
    opened = []
    ipython = types.SimpleNamespace(embed=lambda user_ns: opened.append(user_ns["trainer"]))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(inject_shell.pdb, "set_trace", lambda: opened.append("pdb"))
    path = tmp_path / "shell"

    class Touching(Callback):
        def _trigger(self):
            path.touch()

    run([InjectShell(path, shell), Touching()], epochs=2)
    assert len(opened) == 1  # in the second epoch; after the last the file is only removed
    assert not path.exists()
    with pytest.raises(ValueError, match="shell of"):
        InjectShell(shell="bash")


# --- ends


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


# --- processes and threads


class Waiting(StoppableThread):
    def run(self):
        self._stop_event.wait()


def test_threads_and_processes_live_as_long_as_the_training():
    thread = Waiting(name="waiting")
    alive = []
    look = CallbackFactory(
        trigger=lambda self: alive.append((thread.is_alive(), process.is_alive()))
    )
    process = multiprocessing.get_context("spawn").Process(target=sleep_long)
    run([StartProcOrThread([thread, process]), look], epochs=1)
    assert alive == [(True, True)]
    assert not thread.is_alive()
    assert not process.is_alive()
    with pytest.raises(TypeError, match="expected processes or threads"):
        StartProcOrThread(print)


def sleep_long():
    threading.Event().wait(100)


# --- measurements


def test_throughput_of_each_epoch():
    result = run([ThroughputTracker(), ThroughputTracker(10)], epochs=2)
    steps = result.monitor.of("Throughput (steps/sec)")
    samples = result.monitor.of("Throughput (samples/sec)")
    assert len(steps) == len(samples) == 2
    assert samples == pytest.approx([10 * speed for speed in steps])


def test_throughput_leaves_out_the_time_of_callbacks():
    result = run([ThroughputTracker()], epochs=1)
    (speed,) = result.monitor.of("Throughput (steps/sec)")
    assert speed == pytest.approx(STEPS / result.trainer.step_seconds)


def test_free_memory_is_put():
    (free,) = run([HostMemoryTracker()], epochs=1).monitor.of("HostFreeMemory (GB)")
    assert 0 < free < 10**5


def test_time_left_is_said(caplog):
    run([EstimatedTimeLeft()], epochs=3)
    assert caplog.text.count("estimated time left") == 2


def fake_nvml(loads):
    """The driver's library, where there is none."""
    return types.SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=loads[handle]),
    )


def test_load_of_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([25, 75]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    result = run([GPUUtilizationTracker(), GPUUtilizationTracker([0])], epochs=2)
    assert result.monitor.of("GPUUtil/1") == [75, 75]
    assert result.monitor.of("GPUUtil/0") == [25, 25]
    with pytest.raises(ValueError, match="GPUs of 0 to 1, received \\[2\\]"):
        run([GPUUtilizationTracker([2])])


def test_no_gpu_is_said(monkeypatch):
    def fail():
        raise OSError("driver not loaded")

    broken = fake_nvml([])
    broken.nvmlInit = fail
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    with pytest.raises(RuntimeError, match="needs an NVIDIA GPU .* driver not loaded"):
        run([GPUUtilizationTracker()])
    with pytest.raises(RuntimeError, match="PeakMemoryTracker needs GPUs"):
        run([PeakMemoryTracker()])


# --- looking at the model and its steps


def test_a_trace_of_chosen_steps(directory):
    result = run([Profiler(3, 5)], epochs=2)
    assert result.alone == [3, 5]
    assert len(list(directory.glob("plugins/profile/*/*.xplane.pb"))) == 1
    with pytest.raises(ValueError, match="1 <= first <= last"):
        Profiler(5, 3)


def test_a_trace_that_training_ends_is_complete(directory):
    run([Profiler(3, 500)], epochs=1)
    assert len(list(directory.glob("plugins/profile/*/*.xplane.pb"))) == 1


def test_traces_of_single_steps(directory):
    run([PeriodicCallback(GraphProfiler(), every_k_steps=4)], epochs=1)
    assert list(directory.glob("plugins/profile/*/*.xplane.pb"))


def test_two_profilers_at_once_are_refused(directory):
    with pytest.raises(RuntimeError, match="one profiler at a time"):
        run([Profiler(2, 5), Profiler(3, 4)], epochs=1)


def test_the_model_as_a_table(caplog):
    run([ModelSummary(), ModelSummary(limit=1)], epochs=1, model=Model())
    whole, short = (r.message for r in caplog.records if "the model:" in r.getMessage())
    assert "fc/W   4x3              12  float32" in whole
    assert "fc/b   3                 3  float32" in whole
    assert "2 trainable variables: 15 numbers" in whole
    assert "fc/b" not in short
    assert "... and 1 smaller ones" in short

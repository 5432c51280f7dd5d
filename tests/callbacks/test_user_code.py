"""The user's own functions, commands, processes and shells."""

import multiprocessing
import sys
import threading
import types

import pytest

from tests.callbacks.training import STEPS, putting, run
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    Callback,
    CallbackFactory,
    InjectShell,
    RunOp,
    SendStat,
    StartProcOrThread,
    user_code,
)
from towerpack.core.concurrency import StoppableThread


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
    with pytest.raises(TypeError, match="in a lambda or a tf.function"):
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
    monkeypatch.setattr(user_code.pdb, "set_trace", lambda: opened.append("pdb"))
    path = tmp_path / "shell"

    class Touching(Callback):
        def _trigger(self):
            path.touch()

    run([InjectShell(path, shell), Touching()], epochs=2)
    assert len(opened) == 1  # in the second epoch; after the last the file is only removed
    assert not path.exists()
    with pytest.raises(ValueError, match="shell of"):
        InjectShell(shell="bash")


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

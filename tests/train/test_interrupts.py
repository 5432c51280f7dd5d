"""F7: Ctrl-C and SIGTERM, in processes of their own."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

SCRIPT = """
import sys
import numpy as np
from towerpack import (BatchData, DataFromArrays, ModelSaver, MultiProcessMapData, SimpleTrainer,
                       TrainConfig, launch_train_with_config, logger)
from tests.train.test_multi_gpu import Model
from towerpack.callbacks import Callback

class Telling(Callback):
    told = False
    def _next_due(self):
        return None
    def _trigger_step(self):
        if not self.told:
            self.told = True
            print("stepping", flush=True)
    def _after_train(self):
        print("after_train at", self.global_step, flush=True)

def twice(datapoint):
    return [datapoint[0] * 2, datapoint[1]]

logger.set_logger_dir("run")
x = np.zeros((64, 6), np.float32)
flow = MultiProcessMapData(DataFromArrays(x, x.sum(1)), 2, twice)
launch_train_with_config(
    TrainConfig(model=Model(), dataflow=BatchData(flow, 8), steps_per_epoch=10**6, max_epoch=1,
                callbacks=[ModelSaver(), Telling()], extra_callbacks=[]),
    SimpleTrainer(steps_per_call=int(sys.argv[1])))
"""


def start(tmp_path, steps_per_call, script=SCRIPT, first="stepping"):
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "script.py", str(steps_per_call)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while line := process.stdout.readline():
        if line.startswith(first):
            break
    return process


def members(session):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry))
    return found


def assert_nobody_is_left(process):
    deadline = time.monotonic() + 10
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert members(process.pid) == []


@pytest.mark.parametrize(("number", "steps_per_call"), [(signal.SIGINT, 20), (signal.SIGTERM, 1)])
def test_F7_a_signal_finishes_the_step_saves_and_leaves(tmp_path, number, steps_per_call):
    process = start(tmp_path, steps_per_call)
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    # A KeyboardInterrupt that nobody catches ends Python by the signal itself; shells say 130.
    assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGINT), errors
    step = int(output.split("after_train at")[1])
    assert step > 0
    from towerpack.checkpoint import load_checkpoint_vars

    saved = load_checkpoint_vars(tmp_path / "run")
    assert int(saved["global_step"]) == step
    assert np.isfinite(saved["fc0/W"]).all()
    assert_nobody_is_left(process)


def test_F7_a_second_signal_leaves_at_once(tmp_path):
    script = SCRIPT.replace(
        "class Telling(Callback):",
        "class Slow(Callback):\n    def _interrupted(self):\n        import time\n"
        "        print('saving', flush=True)\n        time.sleep(600)\n\nclass Telling(Callback):",
    ).replace("ModelSaver(), Telling()", "Telling(), Slow()")
    assert script != SCRIPT
    process = start(tmp_path, 1, script)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().startswith("saving")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert_nobody_is_left(process)


def test_F7_a_second_signal_waits_neither_for_a_write_nor_for_the_interpreters_end(tmp_path):
    script = SCRIPT.replace(
        'logger.set_logger_dir("run")',
        """
import atexit, time
from towerpack.checkpoint import background
def write(*arguments, **options):
    print("writing", flush=True)
    time.sleep(600)
background.write_checkpoint = write
atexit.register(time.sleep, 600)
logger.set_logger_dir("run")
""",
    ).replace("ModelSaver(), Telling()", "ModelSaver(every='1 steps'), Telling()")
    process = start(tmp_path, 1, script, first="writing")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt")
    assert_nobody_is_left(process)


@pytest.mark.parametrize("seconds", [600, 0])
def test_F7_slurm_and_a_launcher_may_both_send_the_same_signal(tmp_path, monkeypatch, seconds):
    monkeypatch.setenv("TOWERPACK_PROGRESS", str(tmp_path / "beats"))
    script = SCRIPT.replace(
        "class Telling(Callback):",
        f"""
import os, signal
from towerpack.train import interrupts
interrupts.SAME_REQUEST_SECONDS = {seconds}

class Again(Callback):
    def _interrupted(self):
        os.kill(os.getpid(), signal.SIGTERM)
        print("saving", flush=True)

class Telling(Callback):""",
    ).replace("ModelSaver(), Telling()", "Telling(), Again()")
    process = start(tmp_path, 1, script)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert ("saving" in output) == (seconds > 0)
    assert_nobody_is_left(process)

"""On the console a traceback has the user's frames and ends with the message; the log has all."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import towerpack as tp
import numpy as np
import tensorflow as tf


class Model(tp.ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None, 3], tf.float32, "x")]

    def build_graph(self, x):
        hidden = tp.FullyConnected("fc", x, 4)
        cost = tf.reduce_mean(hidden)
        if KIND == "if" and cost > 0:
            cost = -cost
        return tf.matmul(x, tf.ones([5, 1])) if KIND == "shape" else cost

    def optimizer(self):
        return tp.optimizer.SGD(0.1)


def broken(datapoint):
    return [datapoint[0] / [1.0, 2.0]] if KIND == "data" else datapoint


KIND = sys.argv[1]
if len(sys.argv) < 3:
    tp.logger.set_logger_dir("run")
flow = tp.MapData(tp.BatchData(tp.DataFromArrays(np.ones([8, 3], "float32")), 4), broken)
config = tp.TrainConfig(model=Model(), dataflow=flow, max_epoch=1)
tp.launch_train_with_config(config, tp.SimpleTrainer())
"""
LINES = {
    "if": ('if KIND == "if" and cost > 0:', "tf.cond or tf.while_loop."),
    "shape": ("return tf.matmul(x, tf.ones([5, 1]))", "Dimensions must be equal, but are 3 and 5"),
    "data": ("return [datapoint[0] / [1.0, 2.0]]", "could not be broadcast together"),
}


def failed(tmp_path, *arguments):
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, "script.py", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 1
    return run.stderr[run.stderr.index("Traceback") :]


@pytest.mark.parametrize("kind", LINES)
def test_the_console_has_the_users_frames_and_the_log_has_all(kind, tmp_path):
    shown = failed(tmp_path, kind)
    line, message = LINES[kind]
    assert line in shown
    assert message in "\n".join(shown.splitlines()[-5:])
    files = [text for text in shown.splitlines() if text.startswith("  File ")]
    ours = [text for text in files if "script.py" not in text]
    assert len(ours) <= 2, shown
    log = (tmp_path / "run" / "log.log").read_text()
    assert "tower_trainer.py" in log or "queue.py" in log
    assert line in log and message in log
    assert log.count("Traceback") >= 1


def test_without_a_log_no_frame_is_lost(tmp_path):
    assert "tower_func.py" in failed(tmp_path, "shape", "no log")

"""TensorFlow's threads sleep when they are idle: a setting for a process that has just begun."""

import subprocess
import sys
import types

import pytest

from towerpack.train import threads

SCRIPT = """
from towerpack.train import SimpleTrainer, SyncMultiGPUTrainerReplicated
import tensorflow as tf
from tensorflow.python.eager import context
{before}
trainer = {trainer}
tf.constant(1) + 1  # starts TensorFlow's threads
config = context.context().config
print(config.experimental.disable_thread_spinning, config.inter_op_parallelism_threads,
      len(tf.config.list_logical_devices()))
"""


def settings(before="", trainer="SimpleTrainer()"):
    script = SCRIPT.format(before=before, trainer=trainer)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(
    ("before", "trainer", "expected"),
    [
        ("", "SimpleTrainer()", ["True", "0", "1"]),
        ("", "SyncMultiGPUTrainerReplicated(2)", ["True", "0", "2"]),
        (
            "tf.config.threading.set_inter_op_parallelism_threads(3)",
            "SimpleTrainer()",
            ["True", "3", "1"],
        ),
        ("tf.constant(1) + 1", "SimpleTrainer()", ["False", "0", "1"]),
    ],
)
def test_idle_threads_sleep_if_tensorflow_has_not_begun(before, trainer, expected):
    assert settings(before, trainer) == expected


def test_where_tensorflow_keeps_its_settings_elsewhere_nothing_happens(monkeypatch):
    inside = types.SimpleNamespace(context=lambda: types.SimpleNamespace(settings=None))
    monkeypatch.setattr(threads, "require", lambda *_, **__: inside)
    assert not threads.let_idle_threads_sleep()

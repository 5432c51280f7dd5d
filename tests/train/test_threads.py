"""TensorFlow's threads leave the processors to the workers of the flow, if it has not begun."""

import os
import subprocess
import sys
import types

import pytest

from towerpack.dataflow import DataFromList, MultiProcessRunner
from towerpack.train import threads

SCRIPT = """
from tests.train.test_multi_gpu import data, trained
from towerpack.dataflow import MapData, MultiProcessMapData
from towerpack.monitor.environment import available_cores
from towerpack.train import SimpleTrainer
import tensorflow as tf
from tensorflow.python.eager import context

def same(datapoint):
    return datapoint
{before}
flow = {flow}
trained(SimpleTrainer(), 16, steps=4, flow=flow)
config = context.context().config
print(config.experimental.disable_thread_spinning, config.inter_op_parallelism_threads)
"""
WORKERS = "MultiProcessMapData(data(), available_cores(), same)"


@pytest.mark.parametrize(
    ("flow", "before", "expected"),
    [
        (WORKERS, "", "True 0"),
        (WORKERS, "tf.config.threading.set_inter_op_parallelism_threads(3)", "True 3"),
        (WORKERS, "tf.constant(1) + 1", "False 0"),
        ("MapData(data(), same)", "", "False 0"),
    ],
)
def test_idle_threads_sleep_where_workers_need_the_processors(flow, before, expected):
    command = [sys.executable, "-c", SCRIPT.format(flow=flow, before=before)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    assert found.stdout.splitlines()[-1] == expected


@pytest.mark.parametrize("known", [{"_context_handle": None}, {"_config": None}], ids=str)
def test_where_tensorflow_keeps_its_settings_elsewhere_nothing_happens(monkeypatch, known):
    inside = types.SimpleNamespace(context=lambda: types.SimpleNamespace(**known))
    monkeypatch.setattr(threads, "require", lambda *_, **__: inside)
    flow = MultiProcessRunner(DataFromList([[1]]), 1, threads.available_cores())
    assert not threads.share_processors_with(flow)

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.predict.test_predictor import config, expected, weights
from tests.tiny_model import tiny_arrays
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.models import FullyConnected
from towerpack.predict import (
    MultiProcessDatasetPredictor,
    PredictConfig,
    PredictError,
    SimpleDatasetPredictor,
)


def flow():
    return BatchData(DataFromArrays(tiny_arrays()[0], shuffle=False), 5)


def test_every_datapoint_once_in_order():
    predictor = SimpleDatasetPredictor(config(), flow())
    for _ in range(2):
        results = predictor.get_all_result()
        np.testing.assert_allclose(
            np.concatenate([outputs[0] for outputs in results]),
            expected(tiny_arrays()[0]),
            atol=1e-5,
        )


def test_datapoints_by_name():
    x, label = tiny_arrays()
    datapoints = [{"label": label[:2], "x": x[:2]}]
    ((output,),) = SimpleDatasetPredictor(config(), datapoints).get_all_result()
    np.testing.assert_allclose(output, expected(x[:2]), atol=1e-5)
    with pytest.raises(KeyError, match=r"lacks the inputs \['x'\]"):
        SimpleDatasetPredictor(config(), [{"label": label}]).get_all_result()


@pytest.mark.parametrize("ordered", [True, False])
def test_processes_predict_every_datapoint_once(ordered):
    predictor = MultiProcessDatasetPredictor(
        config(return_input=True), flow(), 2, use_gpu=False, ordered=ordered
    )
    results = predictor.get_all_result()
    assert len(results) == 12
    for (x,), (output,) in results:
        np.testing.assert_allclose(output, expected(x), atol=1e-5)
    received = np.concatenate([inputs[0] for inputs, _ in results])
    x = tiny_arrays()[0]
    if ordered:
        np.testing.assert_array_equal(received, x)
    else:
        np.testing.assert_array_equal(np.sort(received, axis=0), np.sort(x, axis=0))


def config_of(tower):
    return PredictConfig(
        tower_func=tower,
        input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")],
        output_names=["y"],
        session_init=weights(),
    )


def dying_config(marker, times):
    """A tower whose process kills itself for the first `times` batches that hold a NaN."""

    def die(x):
        for number in range(times):
            try:
                os.close(os.open(f"{marker}{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    def tower(x):
        is_bad = tf.reduce_any(tf.math.is_nan(x))
        x = tf.cond(is_bad, lambda: tf.py_function(die, [x], tf.float32), lambda: x)
        return tf.identity(FullyConnected("fc", tf.ensure_shape(x, [None, 4]), 3), name="y")

    return config_of(tower)


def bad_flow():
    x = tiny_arrays()[0].copy()
    x[12] = np.nan
    return [[x[start : start + 5]] for start in range(0, 60, 5)]


def test_F1_a_process_that_is_killed_is_replaced_and_its_datapoint_predicted_again(tmp_path):
    predictor = MultiProcessDatasetPredictor(
        dying_config(tmp_path / "died", times=1), bad_flow(), 2, use_gpu=False
    )
    received = np.concatenate([outputs[0] for outputs in predictor.get_all_result()])
    assert (tmp_path / "died0").exists()
    good = np.arange(60) != 12
    np.testing.assert_allclose(received[good], expected(tiny_arrays()[0])[good], atol=1e-5)
    assert np.isnan(received[12]).all()


def test_F1_a_process_that_is_killed_while_it_loads_is_replaced(tmp_path):
    marker, here = tmp_path / "died", os.getpid()

    def tower(x):
        if os.getpid() != here and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        tf.identity(x * 2, name="y")

    results = MultiProcessDatasetPredictor(config_of(tower), flow(), 1, use_gpu=False)
    received = np.concatenate([outputs[0] for outputs in results.get_all_result()])
    assert marker.exists()
    np.testing.assert_allclose(received, 2 * tiny_arrays()[0])


def test_F1_a_datapoint_that_kills_every_process_is_an_error_in_words(tmp_path):
    predictor = MultiProcessDatasetPredictor(
        dying_config(tmp_path / "died", times=9), bad_flow(), 1, use_gpu=False
    )
    with pytest.raises(PredictError, match=r"died \(SIGKILL: .*\) while predicting") as caught:
        predictor.get_all_result()
    assert "while predicting datapoint 2" in caught.value.__notes__
    assert (tmp_path / "died1").exists() and not (tmp_path / "died2").exists()


def test_an_error_in_a_process_brings_its_traceback():
    wrong = [[np.zeros((2, 4), np.float32)], [np.zeros((2, 5), np.float32)]]
    with pytest.raises(PredictError, match="Traceback") as caught:
        MultiProcessDatasetPredictor(config(), wrong, 1, use_gpu=False).get_all_result()
    assert "while predicting datapoint 1" in caught.value.__notes__


def test_a_model_that_cannot_be_built_is_an_error():
    def tower(x):
        raise ZeroDivisionError("in the tower")

    with pytest.raises(PredictError, match="in the tower"):
        MultiProcessDatasetPredictor(config_of(tower), flow(), 2, use_gpu=False).get_all_result()


def test_an_abandoned_iteration_leaves_no_process(tmp_path):
    script = tmp_path / "script.py"  # without `if __name__`, as users write it
    script.write_text(
        """
import subprocess, os
from tests.predict.test_dataset import config, flow
from towerpack.predict import MultiProcessDatasetPredictor
from towerpack.dataflow.workers.forkserver import stop_server
results = MultiProcessDatasetPredictor(config(), flow(), 1, use_gpu=False).get_result()
next(results)
results.close()
stop_server()
listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid,comm"], capture_output=True,
                        text=True).stdout
print("left:", [line for line in listed.splitlines()[1:] if "ps" not in line.split()[1]])
"""
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    run = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
    )
    assert run.stdout.splitlines()[-1] == "left: []", run.stdout + run.stderr


def test_the_number_of_processes_is_checked():
    with pytest.raises(ValueError, match="nr_proc >= 1"):
        MultiProcessDatasetPredictor(config(), flow(), 0)

import numpy as np
import pytest

from tests.predict.test_offline import weights
from tests.tiny_model import TinyModel, tiny_arrays
from towerpack.dataflow import BatchData, DataFromArrays, MapData
from towerpack.input_source import QueueInput
from towerpack.predict import FeedfreePredictor, PredictConfig


def config(**options):
    return PredictConfig(
        model=TinyModel(),
        input_names=["x"],
        output_names=["fc/output"],
        session_init=weights(),
        **options,
    )


def test_each_call_takes_the_next_batch():
    x, _ = tiny_arrays()
    flow = BatchData(DataFromArrays(x, shuffle=False), 20)
    with FeedfreePredictor(config(return_input=True), QueueInput(flow)) as predict:
        for start in (0, 20, 40, 0):  # and round again
            (received,), (output,) = predict()
            np.testing.assert_array_equal(received, x[start : start + 20])
            expected = received @ weights()["fc/W"] + weights()["fc/b"]
            np.testing.assert_allclose(output, expected, atol=1e-5)


def fail(datapoint):
    raise ZeroDivisionError("in the flow")


def test_a_failure_of_the_flow_reaches_the_caller():
    x, _ = tiny_arrays()
    flow = MapData(BatchData(DataFromArrays(x), 20), fail)
    with (
        FeedfreePredictor(config(), QueueInput(flow)) as predict,
        pytest.raises(ZeroDivisionError, match="in the flow"),
    ):
        predict()

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_arrays
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays, MapData
from towerpack.input_source import QueueInput
from towerpack.models import FullyConnected
from towerpack.predict import (
    DataParallelOfflinePredictor,
    FeedfreePredictor,
    MultiTowerOfflinePredictor,
    OfflinePredictor,
    OnlinePredictor,
    PredictConfig,
)
from towerpack.predict.predictor import device_of
from towerpack.tower import TracedTower, VariableStore


def weights():
    rng = np.random.default_rng(1)
    return {
        "fc/W": rng.normal(size=(4, 3)).astype(np.float32),
        "fc/b": rng.normal(size=3).astype(np.float32),
    }


def config(**options):
    return PredictConfig(
        model=TinyModel(),
        input_names=["x"],
        output_names=["fc/output"],
        session_init=weights(),
        **options,
    )


def expected(x):
    return x @ weights()["fc/W"] + weights()["fc/b"]


def predictor(session_init=None, **options):
    options = {"input_names": ["x"], "output_names": ["fc/output"], **options}
    return OfflinePredictor(PredictConfig(model=TinyModel(), session_init=session_init, **options))


def test_any_batch_size_and_any_tensor():
    values = weights()
    x, _ = tiny_arrays()
    predict = predictor(values)
    for size in (1, 7, 60):
        (output,) = predict(x[:size])
        np.testing.assert_allclose(output, x[:size] @ values["fc/W"] + values["fc/b"], atol=1e-5)


def test_missing_weights_are_an_error_that_names_them():
    with pytest.raises(ValueError, match=r"lacks variables.*\['fc/b'\]"):
        predictor({"fc/W": weights()["fc/W"]})


def test_the_number_of_inputs_is_checked():
    with pytest.raises(ValueError, match=r"expected 1 inputs \['x'\], received 2"):
        predictor(weights())(1, 2)


def test_an_output_that_needs_an_input_left_out_is_explained():
    with pytest.raises(Exception, match="label"):
        predictor(weights(), output_names=["cost"])


def test_a_config_takes_a_model_or_a_function():
    with pytest.raises(ValueError, match="exactly one of"):
        PredictConfig(output_names=["y"])
    with pytest.raises(ValueError, match="input_signature"):
        PredictConfig(tower_func=lambda x: x, output_names=["y"])


def test_a_source_that_shares_no_name_with_the_tower_is_an_error():
    with pytest.raises(ValueError, match="lacks variables"):
        predictor({"other/W": weights()["fc/W"]})


def test_an_intermediate_tensor_an_input_and_several_outputs():
    values = weights()
    x, label = tiny_arrays()
    names = ["prob", "fc/output", "x", "cost"]
    predict = predictor(values, input_names=["x", "label"], output_names=names)
    prob, logits, same, cost = predict(x, label)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_allclose(prob.sum(axis=1), 1, atol=1e-5)
    assert logits.shape == prob.shape and cost.shape == ()


def test_return_input_gives_both():
    x, _ = tiny_arrays()
    inputs, outputs = predictor(weights(), return_input=True)(x)
    assert inputs[0] is x and len(outputs) == 1


def test_a_variable_that_the_outputs_do_not_need_may_be_missing():
    def tower(x):
        FullyConnected("unused", x, 2)
        return tf.identity(FullyConnected("fc", x, 3), name="y")

    spec = tf.TensorSpec([None, 4], tf.float32, "x")
    config = PredictConfig(
        tower_func=tower, input_signature=[spec], output_names=["y"], session_init=weights()
    )
    assert OfflinePredictor(config)(tiny_arrays()[0])[0].shape == (60, 3)


def test_moving_averages_on_request():
    x, _ = tiny_arrays()
    values = weights()
    averaged = {
        "fc/W/ExponentialMovingAverage": values["fc/W"] * 2,
        "fc/b/ExponentialMovingAverage": values["fc/b"] * 0,
        "fc/W/Adam": values["fc/W"],
    }
    (output,) = predictor({**values, **averaged}, ema=True)(x)
    np.testing.assert_allclose(output, x @ values["fc/W"] * 2, atol=1e-5)
    with pytest.raises(ValueError, match="expected moving averages"):
        predictor(values, ema=True)


def test_names_are_checked_where_they_are_given():
    with pytest.raises(ValueError, match=r"among \['x', 'label'\], received \['image'\]"):
        predictor(weights(), input_names=["image"])
    with pytest.raises(TypeError, match="the string 'prob'"):
        predictor(weights(), output_names="prob")
    with pytest.raises(KeyError, match="the nearest are"):
        predictor(weights(), output_names=["probb"])


def test_a_config_without_weights_warns(capsys):
    predictor()
    written = capsys.readouterr().err
    assert "no session_init" in written and "fc/W" in written
    predictor(weights())
    assert "no session_init" not in capsys.readouterr().err


def test_no_warning_where_no_variable_is_needed(capsys):
    def tower(x):
        return tf.identity(2 * x, name="twice")

    signature = [tf.TensorSpec([None], tf.float32, "x")]
    config = PredictConfig(tower_func=tower, input_signature=signature, output_names=["twice"])
    OfflinePredictor(config)
    assert "session_init" not in capsys.readouterr().err


def test_an_online_predictor_sees_the_current_variables():
    store = VariableStore()
    tower = TracedTower(TinyModel().tower_func(), store)
    predict = OnlinePredictor(tower, ["x"], ["fc/output"])
    x, _ = tiny_arrays()
    for values in (weights(), {name: value * 3 for name, value in weights().items()}):
        for name, value in values.items():
            store[name].assign(value)
        np.testing.assert_allclose(predict(x)[0], x @ values["fc/W"] + values["fc/b"], atol=1e-5)


def test_an_online_predictor_takes_all_inputs_by_default():
    tower = TracedTower(TinyModel().tower_func(), VariableStore())
    assert OnlinePredictor(tower, None, ["cost"]).input_names == ["x", "label"]


def test_each_feedfree_call_takes_the_next_batch():
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


def test_a_predictor_for_each_tower_over_one_set_of_variables():
    x, _ = tiny_arrays()
    multi = MultiTowerOfflinePredictor(config(), [0, -1])
    assert len(multi.get_predictors()) == 2 and multi.get_predictor(2) is multi.get_predictor(0)
    assert set(multi.store.variables) == {"fc/W", "fc/b"}
    for predict in [multi, *multi.get_predictors()]:
        np.testing.assert_allclose(predict(x)[0], expected(x), atol=1e-5)


def test_data_parallel_takes_and_gives_tower_by_tower():
    x, _ = tiny_arrays()
    predict = DataParallelOfflinePredictor(config(), 2)
    first, second = predict(x[:5], x[5:])
    np.testing.assert_allclose(first, expected(x[:5]), atol=1e-5)
    np.testing.assert_allclose(second, expected(x[5:]), atol=1e-5)
    with pytest.raises(ValueError, match=r"expected 2 inputs \['x', 'x'\], received 1"):
        predict(x)


def test_devices_of_towers():
    assert device_of(-1) == "/cpu:0" and device_of(0) == "/cpu:0"
    with pytest.raises(ValueError, match="received -2"):
        device_of(-2)
    with pytest.raises(ValueError, match="at least one tower"):
        MultiTowerOfflinePredictor(config(), [])

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_arrays
from towerpack.predict import OfflinePredictor, PredictConfig


def weights():
    rng = np.random.default_rng(1)
    return {
        "fc/W": rng.normal(size=(4, 3)).astype(np.float32),
        "fc/b": rng.normal(size=3).astype(np.float32),
    }


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
    with pytest.raises(ValueError, match="one of the two"):
        PredictConfig(output_names=["y"])
    with pytest.raises(ValueError, match="input_signature"):
        PredictConfig(tower_func=lambda x: x, output_names=["y"])

import numpy as np
import pytest

from tests.predict.test_offline import predictor, weights
from tests.tiny_model import tiny_arrays
from towerpack._tensorflow import tf
from towerpack.export import ExportError, ModelExporter, saved_model


def test_an_export_reloads_and_agrees_for_any_batch_size(tmp_path):
    predict = predictor(weights())
    difference = ModelExporter(predict.config).export_serving(tmp_path / "served")
    assert difference <= saved_model.TOLERANCE
    serve = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    x, _ = tiny_arrays()
    for size in (1, 30):
        received = serve(x=tf.constant(x[:size]))["fc/output"]
        np.testing.assert_allclose(received, predict(x[:size])[0], atol=1e-5)


def test_an_export_that_differs_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model, "TOLERANCE", -1.0)
    with pytest.raises(ExportError, match="differs"):
        ModelExporter(predictor(weights()).config).export_serving(tmp_path / "served")
    assert not list(tmp_path.iterdir())


def test_an_older_export_is_replaced(tmp_path):
    for _ in range(2):
        ModelExporter(predictor(weights()).config).export_serving(tmp_path / "served")
    assert [path.name for path in tmp_path.iterdir()] == ["served"]

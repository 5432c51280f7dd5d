import numpy as np
import onnx

from tests.export.small_net import small_config, small_images
from towerpack.export import ModelExporter
from towerpack.export.onnx_model import open_onnx
from towerpack.predict import OfflinePredictor


def test_any_batch_size_and_plain_names(tmp_path):
    config = small_config(output_names=["prob", "class"])
    report = ModelExporter(config).export_onnx(tmp_path / "model.onnx")
    model = onnx.load(report.path)
    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.input] == ["image"]
    assert [value.name for value in model.graph.output] == ["prob", "class"]
    run = open_onnx(report.path)
    for size in (1, 11):
        prob, classes = OfflinePredictor(config)(small_images(size))
        received = run({"image": small_images(size)})
        np.testing.assert_allclose(received["prob"], prob, atol=1e-5)
        np.testing.assert_array_equal(received["class"], classes)

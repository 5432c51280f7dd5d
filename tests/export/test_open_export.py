import numpy as np
import pytest

from tests.export.small_net import small_config, small_images
from towerpack.export import ModelExporter, Signature, list_graph, open_export
from towerpack.predict import OfflinePredictor

EXPORTS = {
    "model.pb": lambda e, p: e.export_compact(p),
    "saved": lambda e, p: e.export_serving(p),
    "model.onnx": lambda e, p: e.export_onnx(p),
    "model.tflite": lambda e, p: e.export_litert(p),
}


def test_every_format_opens_in_its_runtime(tmp_path):
    signature = Signature({"picture": "image"}, {"likely": "prob"})
    exporter = ModelExporter(small_config(), signature=signature)
    exporter.export_weights(tmp_path / "weights.npz")
    paths = [
        exporter.export_serving(tmp_path / "saved", signature_name="named").path,
        exporter.export_compact(tmp_path / "model.pb").path,
        exporter.export_litert(tmp_path / "model.tflite").path,
        exporter.export_onnx(tmp_path / "model.onnx").path,
    ]
    (expected,) = OfflinePredictor(small_config())(small_images())
    for path in [*paths, tmp_path]:
        export = open_export(path)
        received = export({"picture": small_images().astype(np.float64)})
        np.testing.assert_allclose(received["likely"], expected, atol=1e-5)
    assert export.format == "saved_model"  # of the directory: weights cannot be run


def test_a_path_without_a_record_is_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match="record in export.json"):
        open_export(tmp_path / "model.pb")


@pytest.mark.parametrize("name", EXPORTS)
def test_inputs_outputs_and_nodes_of_each_format(name, tmp_path):
    EXPORTS[name](ModelExporter(small_config()), tmp_path / name)
    listing = list_graph(tmp_path / name)
    ((given, *_),) = listing.inputs
    assert given.removesuffix(":0").endswith("image") and "8x8x1" in listing.inputs[0][2]
    assert len(listing.outputs) == 1 and listing.select_tf_ops == []
    kinds = {kind.lower().replace("_", "") for kind in listing.operations()}
    assert kinds & {"softmax"} and kinds & {"conv2d", "conv"}


def test_a_signature_has_its_keys(tmp_path):
    signature = Signature({"picture": "image"}, {"likely": "prob"})
    ModelExporter(small_config(), signature=signature).export_serving(tmp_path / "saved")
    listing = list_graph(tmp_path / "saved")
    assert listing.inputs == [("picture", "picture:0", "float32 [?x8x8x1]")]
    ((key, tensor, shape),) = listing.outputs
    assert key == "likely" and tensor.endswith(":0") and shape == "float32 [?x3]"

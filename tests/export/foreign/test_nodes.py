import pytest

from tests.export.small_net import small_config
from towerpack.export import ModelExporter, Signature, list_graph

EXPORTS = {
    "model.pb": lambda e, p: e.export_compact(p),
    "saved": lambda e, p: e.export_serving(p),
    "model.onnx": lambda e, p: e.export_onnx(p),
    "model.tflite": lambda e, p: e.export_litert(p),
}


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

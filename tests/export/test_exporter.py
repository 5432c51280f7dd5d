import json

import numpy as np
import pytest

from tests.export.small_net import small_config, small_images, small_weights
from towerpack._tensorflow import tf
from towerpack.checkpoint import load_checkpoint_vars
from towerpack.export import ExportError, ModelExporter, Signature
from towerpack.export import exporter as exporter_module
from towerpack.models import FullyConnected
from towerpack.predict import OfflinePredictor, PredictConfig

FILES = {
    "frozen": lambda e, p, **o: e.export_compact(p / "model.pb", **o),
    "text": lambda e, p, **o: e.export_compact(p / "model.pbtxt", **o),
    "saved_model": lambda e, p, **o: e.export_serving(p / "saved", **o),
    "litert": lambda e, p, **o: e.export_litert(p / "model.tflite", **o),
    "onnx": lambda e, p, **o: e.export_onnx(p / "model.onnx", **o),
}


@pytest.mark.parametrize("export", FILES.values(), ids=FILES.keys())
def test_an_export_says_how_well_it_agrees(export, tmp_path):
    report = export(ModelExporter(small_config(), probe=[small_images()]), tmp_path)
    assert report.path.exists() and report.bytes > 100
    assert 0 <= report.largest_difference <= report.tolerance
    entry = json.loads((tmp_path / "export.json").read_text())["exports"][report.path.name]
    assert entry["largest_difference"] == report.largest_difference
    assert entry["inputs"] == {"image": ["float32", [None, 8, 8, 1]]}
    assert entry["outputs"] == ["prob"] and entry["select_tf_ops"] == []


@pytest.mark.parametrize("export", FILES.values(), ids=FILES.keys())
def test_over_the_tolerance_nothing_gets_the_name_and_the_old_export_stays(export, tmp_path):
    exporter = ModelExporter(small_config())
    with pytest.raises(ExportError, match="differs from the tower by .*tolerance -1"):
        export(exporter, tmp_path, tolerance=-1.0)
    assert not list(tmp_path.iterdir())
    old = export(exporter, tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ExportError):
        export(exporter, tmp_path, tolerance=-1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == before and old.path.exists()


def test_wrong_numbers_are_found(tmp_path, monkeypatch):
    """A runtime that returns slightly different numbers is detected."""
    honest = exporter_module.onnx_model.open_onnx

    def open_wrong(path):
        run = honest(path)
        return lambda inputs: {key: value * 1.001 for key, value in run(inputs).items()}

    monkeypatch.setattr(exporter_module.onnx_model, "open_onnx", open_wrong)
    with pytest.raises(ExportError, match="differs"):
        ModelExporter(small_config()).export_onnx(tmp_path / "model.onnx")


def test_several_exports_share_one_record(tmp_path):
    exporter = ModelExporter(small_config())
    exporter.export_weights(tmp_path / "w.npz")
    exporter.export_compact(tmp_path / "model.pb")
    exporter.export_compact(tmp_path / "model.pb")
    record = json.loads((tmp_path / "export.json").read_text())
    assert list(record["exports"]) == ["w.npz", "model.pb"]


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_weights_are_those_that_the_outputs_need(name, tmp_path):
    report = ModelExporter(small_config()).export_weights(tmp_path / name)
    assert report.largest_difference <= report.tolerance == 1e-5
    values = load_checkpoint_vars(report.path)
    assert sorted(values) == [
        "bn/beta",
        "bn/gamma",
        "bn/mean/EMA",
        "bn/variance/EMA",
        "conv/W",
        "conv/b",
        "fc/W",
        "fc/b",
    ]
    np.testing.assert_array_equal(values["fc/W"], small_weights()["fc/W"])
    with pytest.raises(ValueError, match="ends in one of"):
        ModelExporter(small_config()).export_weights(tmp_path / "w.pkl")


def test_averages_ship_instead_of_weights_on_request(tmp_path):
    config = small_config(ema=True)
    report = ModelExporter(config).export_weights(tmp_path / "w.npz")
    values = load_checkpoint_vars(report.path)
    np.testing.assert_array_equal(values["fc/W"], small_weights()["fc/W"] * np.float32(0.5))


def test_a_separate_inference_graph_from_the_same_variables(tmp_path):
    """Trained on floats of one size; the export takes JPEG files of any size."""

    def decode(data):
        image = tf.io.decode_jpeg(data, channels=1)
        return tf.image.resize(tf.cast(image, tf.float32) / 255, [8, 8])

    def tower(jpeg):
        images = tf.map_fn(decode, jpeg, fn_output_signature=tf.float32)
        tf.identity(FullyConnected("other", tf.reshape(images, [-1, 64]), 2), name="y")

    files = [tf.io.encode_jpeg(np.full((size, size, 1), 99, np.uint8)).numpy() for size in (16, 32)]
    config = small_config(
        tower_func=tower,
        input_signature=[tf.TensorSpec([None], tf.string, "jpeg")],
        input_names=["jpeg"],
        output_names=["y"],
        session_init={"other/W": np.ones((64, 2), np.float32), "other/b": np.zeros(2, np.float32)},
    )
    with pytest.raises(ValueError, match=r"'jpeg', which cannot be generated: pass probe="):
        ModelExporter(config).export_serving(tmp_path / "served")
    report = ModelExporter(config, probe=[np.array(files)]).export_serving(tmp_path / "served")
    serve = tf.saved_model.load(str(report.path)).signatures["serving_default"]
    received = serve(jpeg=tf.constant(files))["y"]
    np.testing.assert_allclose(received, np.full((2, 2), 64 * 99 / 255), rtol=1e-4)


def test_preprocessing_goes_into_the_graph_of_every_format(tmp_path):
    def scale(pixels):
        return tf.cast(pixels, tf.float32) / 255

    signature = Signature(
        ["image"],
        ["prob"],
        preprocess=scale,
        preprocess_inputs=[tf.TensorSpec([None, 8, 8, 1], tf.uint8, "pixels")],
    )
    exporter = ModelExporter(small_config(), signature=signature)
    for export in FILES.values():
        assert list(export(exporter, tmp_path).inputs) == ["pixels"]
    pixels = (small_images() * 255).astype(np.uint8)
    run = exporter_module.onnx_model.open_onnx(tmp_path / "model.onnx")
    (expected,) = OfflinePredictor(small_config())(pixels.astype(np.float32) / 255)
    np.testing.assert_allclose(run({"pixels": pixels})["prob"], expected, atol=1e-5)


def test_preprocessing_that_gives_too_few_tensors_is_an_error(tmp_path):
    signature = Signature(
        ["image"],
        ["prob"],
        preprocess=lambda x: [],
        preprocess_inputs=[tf.TensorSpec([None], tf.float32, "x")],
    )
    with pytest.raises(ValueError, match=r"1 tensors for the inputs \['image'\], received 0"):
        ModelExporter(small_config(), signature=signature).export_weights(tmp_path / "w.npz")


def test_keys_replace_names_in_every_format(tmp_path):
    signature = Signature({"picture": "image"}, {"likely": "prob", "which": "class"})
    exporter = ModelExporter(small_config(), signature=signature)
    for export in FILES.values():
        report = export(exporter, tmp_path)
        assert list(report.inputs) == ["picture"] and report.outputs == ["likely", "which"]


def test_keys_that_are_taken_are_refused():
    signature = Signature({"conv/Relu": "image"}, ["prob"])
    with pytest.raises(ValueError, match="choose others"):
        _ = ModelExporter(small_config(), signature=signature).graph


def test_several_signatures_over_one_set_of_variables(tmp_path):
    report = ModelExporter(small_config()).export_serving(
        tmp_path / "served",
        signature_name="classify",
        signatures={"features": Signature(["image"], {"maps": "pool/output"})},
    )
    assert list(report.signatures) == ["classify", "features"]
    assert report.signatures["features"]["inputs"] == {"image": "features_image:0"}
    loaded = tf.saved_model.load(str(report.path))
    image = tf.constant(small_images())
    assert loaded.signatures["features"](image=image)["maps"].shape == (6, 4, 4, 4)
    assert loaded.signatures["classify"](image=image)["prob"].shape == (6, 3)


def test_an_input_may_be_an_output(tmp_path):
    exporter = ModelExporter(small_config(output_names=["image", "prob"]))
    assert exporter.export_serving(tmp_path / "served").largest_difference <= 1e-5


def test_signatures_are_checked():
    with pytest.raises(TypeError, match="received 'prob'"):
        Signature(["x"], "prob")
    with pytest.raises(ValueError, match="together, or neither"):
        Signature(["x"], ["y"], preprocess=print)
    with pytest.raises(ValueError, match="at least one output"):
        Signature(["x"], [])


def test_gradients_of_a_users_own_are_left_out(tmp_path):
    def tower(x):
        scale = tf.exp(x)  # a gradient that depends on other tensors cannot be saved

        @tf.custom_gradient
        def same(y):
            return tf.identity(y), lambda upstream: upstream * scale

        tf.identity(same(x * 2), name="y")

    config = PredictConfig(
        tower_func=tower,
        input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")],
        output_names=["y"],
    )
    assert ModelExporter(config).export_serving(tmp_path / "saved").largest_difference == 0

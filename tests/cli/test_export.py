"""`towerpack export` and `towerpack predict`, as a shell runs them, on a model in a user's file."""

import json

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from tests.export.small_net import small_config, small_images, small_weights
from towerpack._tensorflow import tf
from towerpack.cli.app import app
from towerpack.export import ModelExporter, Signature
from towerpack.predict import OfflinePredictor

MODEL = """
from tests.export.small_net import SmallNet

class Mine(SmallNet):
    pass

def make():
    return Mine()

nothing = dict
"""


def towerpack(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a model's file, its weights, and its exports."""
    directory = tmp_path_factory.mktemp("model")
    (directory / "mine.py").write_text(MODEL)
    np.savez(directory / "weights.npz", allow_pickle=False, **small_weights())
    np.savez(directory / "typical.npz", allow_pickle=False, image=small_images(40))
    output = towerpack(
        "export",
        f"{directory}/mine.py:Mine",
        directory / "exports",
        *("--checkpoint", directory / "weights.npz", "--inputs", "image", "--outputs", "prob"),
        *("--calibration", directory / "typical.npz", "--probe", directory / "typical.npz"),
    )
    (directory / "table.txt").write_text(output)
    return directory


def test_all_formats_by_one_command_with_a_table(model):
    table = (model / "table.txt").read_text()
    for word in ("saved_model", "litert int8", "onnx", "model.pbtxt", "safetensors"):
        assert word in table
    assert "| format         | file                 |" in table and "|--------" in table
    exports = json.loads((model / "exports" / "export.json").read_text())["exports"]
    assert len(exports) == 10
    for entry in exports.values():
        assert entry["largest_difference"] <= entry["tolerance"]
    assert list(exports["weights.npz"]["latency_ms"]) == []
    assert list(exports["model_batch1.tflite"]["latency_ms"]) == ["1"]
    assert list(exports["model.onnx"]["latency_ms"]) == ["1", "64"]


def test_predict_with_an_export_and_with_a_checkpoint_agree(model, tmp_path):
    np.savez(tmp_path / "in.npz", allow_pickle=False, image=small_images(70))
    common = ["--input", tmp_path / "in.npz", "--output"]
    towerpack("predict", model / "exports" / "model.onnx", *common, tmp_path / "a.npz")
    towerpack(
        *("predict", f"{model}/mine.py:make", *common, tmp_path / "b.json"),
        *("--checkpoint", model / "weights.npz", "--inputs", "image", "--outputs", "prob"),
    )
    (expected,) = OfflinePredictor(small_config())(small_images(70))
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_allclose(arrays["prob"], expected, atol=1e-5)
    rows = json.loads((tmp_path / "b.json").read_text())
    np.testing.assert_allclose([row["prob"] for row in rows], expected, atol=1e-5)


def test_predict_with_a_fixed_batch_size(model, tmp_path):
    np.savez(tmp_path / "in.npz", allow_pickle=False, image=small_images(5))
    common = ["--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz"]
    towerpack("predict", model / "exports" / "model_batch1.tflite", *common)
    (expected,) = OfflinePredictor(small_config())(small_images(5))
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["prob"], expected, atol=1e-5)


def test_predict_images_into_a_directory(model, tmp_path):
    (tmp_path / "images" / "deep").mkdir(parents=True)
    pixels = (small_images(2) * 255).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "images" / "a.png"), pixels[0])
    cv2.imwrite(str(tmp_path / "images" / "deep" / "b.png"), pixels[1])
    towerpack(
        *("predict", model / "exports", "--input", tmp_path / "images"),
        *("--output", tmp_path / "out"),
    )
    (expected,) = OfflinePredictor(small_config())(pixels.astype(np.float32) / 255)
    for name, row in (("a", 0), ("deep/b", 1)):
        with np.load(tmp_path / "out" / f"{name}.npz") as arrays:
            np.testing.assert_allclose(arrays["prob"], expected[row], atol=1e-5)


def test_predict_pictures(model, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((8, 8), 51, np.uint8))
    towerpack(
        *("predict", f"{model}/mine.py:Mine", "--input", tmp_path / "a.png"),
        *("--output", tmp_path / "out", "--inputs", "image", "--outputs", "image"),
        *("--checkpoint", model / "weights.npz"),
    )
    assert (cv2.imread(str(tmp_path / "out" / "a.png")) == 51).all()


PICTURES = """
import tensorflow as tf
from towerpack import ModelDesc

class Colors(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None, None, None, 3], tf.float32, "image")]

    def build_graph(self, image):
        tf.identity(image, name="same")
        tf.cast(tf.argmax(image, axis=3), tf.int32, name="class")
        return tf.reduce_mean(image, name="cost")
"""


def test_colors_classes_and_sizes_of_pictures(tmp_path):
    (tmp_path / "colors.py").write_text(PICTURES)
    (tmp_path / "in").mkdir()
    red = np.zeros((4, 6, 3), np.uint8)
    red[..., 2] = 200  # OpenCV's order is BGR
    cv2.imwrite(str(tmp_path / "in" / "red.png"), red)
    cv2.imwrite(str(tmp_path / "in" / "red.bmp"), red[:2])
    np.savez(tmp_path / "none.npz", allow_pickle=False, nothing=np.zeros(1))
    common = [f"{tmp_path}/colors.py:Colors", "--checkpoint", tmp_path / "none.npz"]
    common += ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    assert "--batch 1" in towerpack("predict", *common, "--outputs", "same,class", code=2)
    for option, expected in ([], 0), (["--bgr"], 2):
        towerpack("predict", *common, "--outputs", "same,class", "--batch", 1, *option)
        # Of two files that differ in their ending alone, each has its own.
        assert (cv2.imread(str(tmp_path / "out" / "red.png.same.png")) == red).all()
        classes = cv2.imread(str(tmp_path / "out" / "red.bmp.class.png"), cv2.IMREAD_UNCHANGED)
        assert classes.shape == (2, 6) and (classes == expected).all()
    output = towerpack("predict", *common, "--outputs", "cost", "--batch", 1, code=2)
    assert "received 'cost' of shape ()" in " ".join(output.replace("│", " ").split())


def test_predict_with_a_model_that_takes_the_bytes_of_files(tmp_path):
    def decode(data):
        def one(jpeg):
            return tf.cast(tf.io.decode_image(jpeg, 1, expand_animations=False), tf.float32) / 255

        return tf.map_fn(one, data, fn_output_signature=tf.TensorSpec([8, 8, 1], tf.float32))

    spec = tf.TensorSpec([None], tf.string, "file")
    signature = Signature(["image"], ["prob"], preprocess=decode, preprocess_inputs=[spec])
    pixels = (small_images(3) * 255).astype(np.uint8)
    files = [cv2.imencode(".png", image)[1].tobytes() for image in pixels]
    exporter = ModelExporter(small_config(), signature=signature, probe=[files])
    exporter.export_serving(tmp_path / "model")
    (tmp_path / "in").mkdir()
    for place, data in enumerate(files):
        (tmp_path / "in" / f"{place}.png").write_bytes(data)
    common = ["--input", tmp_path / "in", "--output", tmp_path / "out.json"]
    towerpack("predict", tmp_path / "model", *common)
    (expected,) = OfflinePredictor(small_config())(pixels.astype(np.float32) / 255)
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [row["name"] for row in rows] == ["0.png", "1.png", "2.png"]
    np.testing.assert_allclose([row["prob"] for row in rows], expected, atol=1e-5)


def test_show_lists_a_file(model):
    output = towerpack("export", "show", model / "exports" / "model.pb")
    assert "image  Placeholder" in output and "prob  Softmax" in output and "Conv2D" in output
    assert "conv/Relu" in towerpack("export", "show", model / "exports" / "model.pb", "--nodes")
    assert "expected a .pb" in towerpack("export", "show", model, code=1)


@pytest.mark.parametrize(
    ("name", "says"),
    [("Other", "has no 'Other'"), ("nothing", "to be a ModelDesc")],
)
def test_a_model_that_cannot_be_found_is_explained(model, name, says, tmp_path):
    options = ["--checkpoint", model / "weights.npz", "--outputs", "prob"]
    output = towerpack("export", f"{model}/mine.py:{name}", tmp_path, *options, code=2)
    assert says in " ".join(output.replace("│", " ").split())

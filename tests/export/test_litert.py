import numpy as np
import pytest

from tests.export.small_net import small_config, small_images
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.export import ExportError, ModelExporter, list_graph
from towerpack.export.litert import open_litert
from towerpack.predict import OfflinePredictor


def calibration():
    return BatchData(DataFromArrays(small_images(40), shuffle=False), 4)


def test_three_precisions(tmp_path):
    exporter = ModelExporter(small_config(), probe=[small_images()])
    reports = [
        exporter.export_litert(tmp_path / "f32.tflite"),
        exporter.export_litert(tmp_path / "f16.tflite", precision="float16"),
        exporter.export_litert(tmp_path / "i8.tflite", precision="int8", calibration=calibration()),
    ]
    assert [report.format for report in reports] == [
        "litert float32",
        "litert float16",
        "litert int8",
    ]
    differences = [report.largest_difference for report in reports]
    assert differences == sorted(differences) and differences[0] < 1e-5
    (expected,) = OfflinePredictor(small_config())(small_images(9))
    for report in reports:
        received = open_litert(report.path)({"image": small_images(9)})["prob"]
        np.testing.assert_allclose(received, expected, atol=0.1)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_fixed_batch_size(precision, tmp_path):
    exporter = ModelExporter(small_config(), probe=[small_images(5)])
    report = exporter.export_litert(
        tmp_path / "m.tflite",
        precision=precision,
        calibration=calibration() if precision == "int8" else None,
        batch_size=2,
    )
    assert report.inputs == {"image": ["float32", [2, 8, 8, 1]]}
    (row,) = list_graph(report.path).inputs
    assert row[2] == "[2x8x8x1]"
    (expected,) = OfflinePredictor(small_config())(small_images(2))
    received = open_litert(report.path)({"image": small_images(2)})["prob"]
    np.testing.assert_allclose(received, expected, atol=0.1 if precision == "int8" else 1e-5)


def test_a_batch_size_that_the_inputs_do_not_fit(tmp_path):
    exporter = ModelExporter(function_config(tf.abs, [3, 2]))
    with pytest.raises(ValueError, match=r"batch_size=1 fits, received 'x' of shape \(3, 2\)"):
        exporter.export_litert(tmp_path / "m.tflite", batch_size=1)
    assert exporter.export_litert(tmp_path / "m.tflite", batch_size=3).largest_difference == 0


def test_operations_that_litert_lacks_are_named(tmp_path):
    exporter = ModelExporter(function_config(tf.tan))
    with pytest.raises(ExportError, match=r"received \['Tan'\], which need the select-TF-ops"):
        exporter.export_litert(tmp_path / "m.tflite")
    assert not list(tmp_path.iterdir())
    report = exporter.export_litert(tmp_path / "m.tflite", select_tf_ops=True)
    assert report.select_tf_ops == ["Tan"] and report.largest_difference is None
    assert "NOT CHECKED; needs the select-TF-ops set for Tan" in str(report)


def test_operations_that_nobody_has_are_an_error_that_names_them(tmp_path):
    def igamma(x):
        return tf.math.igamma(tf.abs(x) + 1, tf.abs(x))

    with pytest.raises(ValueError, match="received others: Igamma"):
        ModelExporter(function_config(igamma)).export_litert(tmp_path / "m.tflite")
    assert not list(tmp_path.iterdir())


def function_config(function, shape=(None, 2)):
    return small_config(
        tower_func=lambda x: tf.identity(function(x), name="y"),
        input_signature=[tf.TensorSpec(shape, tf.float32, "x")],
        input_names=["x"],
        output_names=["y"],
        session_init=None,
    )


def test_calibration_belongs_to_int8(tmp_path):
    exporter = ModelExporter(small_config())
    with pytest.raises(ValueError, match="calibration= with precision='int8', and only then"):
        exporter.export_litert(tmp_path / "x.tflite", precision="int8")
    with pytest.raises(ValueError, match="an empty one"):
        exporter.export_litert(tmp_path / "x.tflite", precision="int8", calibration=[])
    with pytest.raises(ValueError, match="received 'int4'"):
        exporter.export_litert(tmp_path / "x.tflite", precision="int4")

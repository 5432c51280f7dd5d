import numpy as np
import pytest

from tests.callbacks.training import STEPS, run
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    DumpTensorAsImage,
    DumpTensors,
    PeriodicTrigger,
    PredictionImages,
    ProcessTensors,
    TensorPrinter,
)
from towerpack.core import logger


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


def read(path):
    return tf.io.decode_png(path.read_bytes()).numpy()


def test_process_tensors_gets_the_values_of_every_step():
    seen = []
    run([ProcessTensors(["cost", "x"], lambda cost, x: seen.append((cost, x.shape)))], epochs=1)
    assert len(seen) == STEPS
    assert {shape for _, shape in seen} == {(10, 4)}
    with pytest.raises(ValueError, match="at least one tensor"):
        ProcessTensors([], print)


def test_tensors_are_logged_with_their_step(caplog):
    run([TensorPrinter("cost")], epochs=1)
    assert "step 3: cost = " in caplog.text


def test_tensors_are_dumped_as_npz(directory):
    run([DumpTensors(["cost", "x"])], epochs=1)
    files = sorted(directory.glob("*.npz"))
    assert [file.name for file in files] == [f"DumpTensor-{n}.npz" for n in range(1, STEPS + 1)]
    with np.load(files[0], allow_pickle=False) as arrays:
        assert arrays["x"].shape == (10, 4)
        assert arrays["cost"].shape == ()


def test_dumping_needs_a_directory():
    with pytest.raises(ValueError, match="DumpTensors needs a directory"):
        run([DumpTensors("cost")])


def test_a_variable_as_a_picture(directory):
    result = run([DumpTensorAsImage("fc/W", "weights", lambda w: np.abs(w) / 10)], epochs=2)
    assert result.alone == []
    names = sorted(file.name for file in directory.glob("*.png"))
    assert names == ["weights-ep001-0.png", "weights-ep002-0.png"]
    expected = np.clip(np.abs(result.trainer.store["fc/W"].numpy()) / 10 * 255, 0, 255)
    np.testing.assert_array_equal(read(directory / names[1])[:, :, 0], expected.astype(np.uint8))


def test_a_tensor_as_pictures_of_the_step_of_the_trigger(directory):
    pictures = PeriodicTrigger(DumpTensorAsImage("picture", scale=1), every_k_steps=4)
    seen = []
    result = run([pictures, ProcessTensors("picture", seen.append)], epochs=1)
    names = sorted(file.name for file in directory.glob("*.png"))
    assert names == ["picture-ep001-step4-0.png"]
    expected = np.clip(seen[3], 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(read(directory / names[0]), expected)
    assert result.alone == list(range(1, STEPS + 1))


def test_what_is_no_picture_is_refused(directory):
    with pytest.raises(ValueError, match="pass a map_func"):
        run([DumpTensorAsImage("fc/b")], epochs=1)


def test_predictions_as_pictures():
    x = np.ones([2, 4], np.float32)

    def draw(inputs, outputs):
        np.testing.assert_array_equal(inputs[0], x)
        return np.round(outputs[0] * 255)

    result = run([PredictionImages([x], "prob", ["x"], draw)], epochs=2)
    assert [(step, name) for step, name, _ in result.monitor.images] == [
        (STEPS, "predictions"),
        (2 * STEPS, "predictions"),
    ]
    assert result.monitor.images[0][2].shape == (1, 2, 3, 1)
    with pytest.raises(ValueError, match="one array for each of the inputs"):
        run([PredictionImages([x], "prob")])

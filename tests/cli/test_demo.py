"""The demo itself runs in tests/house (from the wheel); here are its parts."""

import numpy as np
import pytest

from towerpack.cli import demo, demo_data
from towerpack.dataflow.dataset import MnistSample


def test_shift_moves_the_digit_and_keeps_the_label():
    image, label = MnistSample("test", shuffle=False)[0]
    rng = np.random.default_rng(0)
    moved = [demo_data.shift([image, label], rng) for _ in range(20)]
    assert all(m.shape == image.shape and m.dtype == image.dtype and y == label for m, y in moved)
    assert len({m.tobytes() for m, _ in moved}) > 5


def test_the_picture_shows_wrong_digits_first(tmp_path):
    images, labels = demo_data.all_test_digits()
    probabilities = np.eye(10)[labels]
    probabilities[7] = np.roll(probabilities[7], 1)
    history = [
        {"epoch_num": e, "cost": 1, "validation_cost": 2, "train_error": 0, "validation_error": 0}
        for e in (1, 2)
    ]
    demo.draw(tmp_path / "demo.png", history, images, labels, probabilities)
    assert (tmp_path / "demo.png").stat().st_size > 20_000


@pytest.mark.slow
def test_a_short_demo_twice(capsys):
    for _ in range(2):
        accuracy = demo.main(epochs=1)
    assert accuracy > 0.8
    assert capsys.readouterr().out.splitlines()[-1] == f"validation accuracy: {accuracy:.3f}"

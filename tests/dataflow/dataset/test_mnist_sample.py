from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from towerpack.dataflow.base import Pass
from towerpack.dataflow.batch import BatchData
from towerpack.dataflow.dataset import MnistSample, mnist_sample

# Of the first bytes of the four original files, after their headers.
ORIGINAL = {
    "train_images": "a853ca5da5c224d531837eaa3fe56ac036778bb2fdfad445143b5b7d4ec1c739",
    "train_labels": "4263f048ea43702387ef1c8494b59e785853c0410e9770600d50f541a6fee264",
    "test_images": "f8f3c5a608a9f7d4bd5e9d69b90c53932b8b99371d9db26121b42f62f3abcd56",
    "test_labels": "d14ba0a1a3818edefa35518ed001ece84b7ac0eabe9394551c73928493175d3f",
}


def test_the_file_is_small_and_holds_the_original_bytes():
    path = Path(mnist_sample.__file__).with_name(mnist_sample.FILE)
    assert path.stat().st_size < 1_000_000
    assert path.with_name("mnist_sample.LICENSE.md").is_file()
    with np.load(path, allow_pickle=False) as arrays:
        sums = {name: hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in arrays.files}
    assert sums == ORIGINAL


@pytest.mark.parametrize(("name", "size"), [("train", 5000), ("test", 1000)])
def test_datapoints(name, size):
    flow = MnistSample(name, shuffle=False)
    assert len(flow) == size and flow.random_access
    image, label = flow[3]
    assert (image.shape, image.dtype, label.dtype) == ((28, 28), np.float32, np.int32)
    assert image.min() == 0 and 0.9 < image.max() <= 1
    assert set(np.bincount(flow.labels) > size / 15) == {True}


def test_shuffle_gives_every_image_once_in_another_order_each_epoch():
    flow = MnistSample("test", shuffle=True)
    first, second = ([int(label) for _, label in flow] for _ in range(2))
    assert first != second and sorted(first) == sorted(second) == sorted(flow.labels.tolist())
    assert [int(label) for _, label in MnistSample("test", True)] == first
    assert [int(label) for _, label in MnistSample("test", True, seed=1)] != first


def test_a_batch_equals_its_rows_bit_for_bit():
    flow = MnistSample("test", shuffle=True)
    images, labels = BatchData(flow, 7).get(2, Pass(epoch=3))
    for offset in range(7):
        image, label = flow.get(14 + offset, Pass(epoch=3))
        np.testing.assert_array_equal(images[offset], image)
        assert labels[offset] == label
    rows = flow.get_rows(range(14, 21), Pass(epoch=3))
    np.testing.assert_array_equal(np.stack([image for image, _ in rows]), images)


def test_an_unknown_part_is_refused():
    with pytest.raises(ValueError, match="expected 'train' or 'test', received 'valid'"):
        MnistSample("valid")

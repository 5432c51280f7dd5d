from __future__ import annotations

import numpy as np
import pytest

from towerpack.dataflow.dataset import FashionMnist, fashion_mnist

pytestmark = pytest.mark.skipif(
    not fashion_mnist.DEBIAN.is_dir(), reason="needs the Debian package dataset-fashion-mnist"
)


@pytest.mark.parametrize(("name", "size"), [("train", 60_000), ("test", 10_000)])
def test_the_debian_packages_files_are_found_and_their_sums_fit(name, size):
    flow = FashionMnist(name)
    assert len(flow) == size and set(np.bincount(flow.labels)) == {size // 10}
    image, label = flow[0]
    assert (image.shape, image.dtype, image.max() <= 1) == ((28, 28), np.float32, True)
    assert FashionMnist.get_label_names()[int(label)] in fashion_mnist.LABELS


def test_a_named_dir_is_taken_alone(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no t10k-images-idx3-ubyte"):
        FashionMnist("test", dir=tmp_path)
    assert len(FashionMnist("test", dir=fashion_mnist.DEBIAN)) == 10_000
    with pytest.raises(ValueError, match="expected 'train' or 'test'"):
        FashionMnist("val")

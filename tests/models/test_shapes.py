import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf
from towerpack.models import (
    Conv2D,
    MaxPooling,
    UpSampling,
    batch_flatten,
)

IMAGE = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)


def test_batch_flatten_with_unknown_sizes():
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, None, 3])])
    def run(x):
        y = batch_flatten(x)
        shapes.append(y.shape.as_list())
        return y

    assert run(tf.zeros([2, 5, 3])).shape == [2, 15]
    assert shapes == [[None, None]]


def test_sizes_and_paddings_that_are_wrong():
    with pytest.raises(ValueError, match="expected an integer or 2 of them, received 1.5"):
        build(lambda x: Conv2D("c", x, 3, 1.5), IMAGE)
    with pytest.raises(ValueError, match=r"or 2 of them, received \(1, 2, 3\)"):
        build(lambda x: MaxPooling("c", x, (1, 2, 3)), IMAGE)
    with pytest.raises(ValueError, match="'same' or 'valid' as padding, received 'full'"):
        build(lambda x: Conv2D("c", x, 3, 3, padding="full"), IMAGE)
    with pytest.raises(ValueError, match="split=3 must divide the input's channels"):
        build(lambda x: Conv2D("c", x, 3, 3, split=3), IMAGE)
    with pytest.raises(ValueError, match="'nearest' or 'bilinear', received 'cubic'"):
        build(lambda x: UpSampling("c", x, interpolation="cubic"), IMAGE)

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.input_source import DummyConstantInput, SignatureError, TensorInput

SPECS = [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "label")]


def x(width=2):
    return tf.zeros([3, width])


def label():
    return tf.zeros([3], tf.int32)


def test_zeros_of_the_shapes_that_were_given():
    source = DummyConstantInput([[4, 2], [4]])
    source.setup(SPECS)
    zeros, labels = source.next().tensors(0)
    np.testing.assert_array_equal(zeros, np.zeros([4, 2]))
    assert labels.dtype == tf.int32
    stacked = source.next(9, 1, 9)
    assert (stacked.count, stacked.stacks[0][0].shape) == (9, [9, 4, 2])
    assert source.next(9, 1, 9).stacks is stacked.stacks, "they are made once"
    assert [spec.shape for spec in source.specs()] == [[4, 2], [4]]
    assert source.size() is None
    assert source.state() is None


def test_a_shape_for_each_input():
    with pytest.raises(ValueError, match=r"expected a shape for each of the 2 inputs"):
        DummyConstantInput([[4, 2]]).setup(SPECS)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (x, "expected 2 components, received 1"),
        (lambda: [label(), label()], "'x' has another dtype"),
        (lambda: [x(5), label()], "'x' has another shape"),
        (lambda: {"x": x()}, r"\['label'\] are missing"),
        (lambda: [1.0, 2], "'x' has another dtype"),
    ],
)
def test_B2_a_misfit_is_refused_with_both_sides(function, problem):
    source = TensorInput(function)
    source.setup(SPECS)
    with pytest.raises(SignatureError, match=problem) as caught:
        source.get_input_tensors()
    assert "the model expects   x: float32 (None, 2), label: int32 (None,)" in str(caught.value)


def test_a_tensor_is_no_function():
    with pytest.raises(TypeError, match="expected a function"):
        TensorInput([x(), label()])

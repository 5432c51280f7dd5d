"""Arrays of any origin become tensors that TensorFlow's kernels can use."""

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_arrays
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays, MultiProcessMapData
from towerpack.input_source import QueueInput
from towerpack.input_source.buffer import ALIGNMENT, aligned_empty, as_tensor


def address(tensor):
    return np.asarray(memoryview(tensor)).ctypes.data


@pytest.mark.parametrize("offset", [0, 4, 16, 32, 60])
def test_a_tensor_is_aligned_wherever_its_array_begins(offset):
    """TensorFlow aborts the process when a kernel gets memory that is not."""
    memory = aligned_empty((ALIGNMENT + 400,), np.dtype(np.uint8))
    array = memory[offset : offset + 400].view(np.float32).reshape(10, 10)
    array[...] = np.arange(100).reshape(10, 10)
    tensor = as_tensor(array)
    assert address(tensor) % ALIGNMENT == 0
    assert (address(tensor) == array.ctypes.data) == (offset == 0)
    np.testing.assert_array_equal(tensor, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(100, dtype=np.float32).reshape(10, 10).T,
        np.arange(100, dtype=np.float32)[::3],
        np.arange(100, dtype=">f4"),
        np.broadcast_to(np.float32(3), (4, 5)),
        np.zeros([0, 5], np.float32),
        np.array(2, np.float32),
        np.array(["a", "bc"]),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.arange(6, dtype=tf.bfloat16.as_numpy_dtype),
    ],
    ids=["fortran", "strided", "big endian", "read-only", "empty", "scalar", "text", "bool",
         "complex", "bfloat16"],
)  # fmt: skip
def test_arrays_of_every_kind_keep_their_values(array):
    tensor = as_tensor(array)
    assert tensor.shape == array.shape
    expected = array.astype(bytes) if array.dtype.kind == "U" else array
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_small_batches_of_workers_arrive_aligned():
    """One worker task makes several of them, which lie side by side in shared memory."""
    x, label = (np.repeat(array, 20, axis=0) for array in tiny_arrays())
    flow = BatchData(DataFromArrays(x, label, shuffle=False), 5)

    def copied(datapoint):
        return [component.copy() for component in datapoint]

    source = QueueInput(MultiProcessMapData(flow, 2, copied))
    source.setup(TinyModel().input_signature)
    source.start()
    try:
        received = [source.get_input_tensors() for _ in range(len(flow))]
    finally:
        source.close()
    assert all(address(tensor) % ALIGNMENT == 0 for batch in received for tensor in batch)
    for batch, expected in zip(received, flow, strict=True):
        for tensor, array in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(tensor, array)

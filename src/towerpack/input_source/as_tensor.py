"""Arrays as tensors, in the memory that they are in."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.input_source.shelf import ALIGNMENT


def as_tensor(array: np.ndarray) -> Any:
    """Shares the array's memory with the tensor where TensorFlow can use it, else copies it.

    `from_dlpack` accepts memory at any address, but TensorFlow's kernels end the process when it is
    not aligned. Small datapoints of one worker task lie side by side, so that most are not.

    The array must not be written to any more. It is released, in any thread, with the tensor.
    """
    if array.ctypes.data % ALIGNMENT == 0:
        try:
            return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        except (BufferError, tf.errors.OpError):
            pass  # a dtype or a memory order that DLPack or TensorFlow does not accept
    return tf.convert_to_tensor(array)

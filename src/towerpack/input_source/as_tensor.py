"""Arrays as tensors, in the memory that they are in."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack._tensorflow import tf


def as_tensor(array: np.ndarray) -> Any:
    """Without a copy, where there is a way: `tf.convert_to_tensor` always makes one.

    Nobody may write to the array any more. It is let go of, in any thread, with the tensor.
    """
    try:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    except (BufferError, tf.errors.OpError):  # a dtype that DLPack does not know
        return tf.convert_to_tensor(array)

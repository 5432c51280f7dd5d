"""A value that graphs share and nobody saves."""

from __future__ import annotations

import itertools
from typing import Any

from towerpack._tensorflow import tf

_numbers = itertools.count()  # resources are found by name, in the whole process


class Cell:
    """A tensor in TensorFlow's memory, to be read, written and added to by graphs.

    No `tf.Variable`: those are found, and saved, by whoever traces the step. And no constant, of
    which TensorFlow would compute in advance what follows from it.
    """

    def __init__(self, value: Any):
        with tf.init_scope():
            value = tf.convert_to_tensor(value)
            self._dtype, self._shape = value.dtype, value.shape
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=value.dtype, shape=value.shape, shared_name=f"towerpack_{next(_numbers)}"
            )
            self.write(value)

    def read(self) -> Any:
        value = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)
        return tf.ensure_shape(value, self._shape)

    def write(self, value: Any) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)

    def add(self, value: Any) -> None:
        tf.raw_ops.AssignAddVariableOp(resource=self._handle, value=value)

    def close(self) -> None:
        tf.raw_ops.DestroyResourceOp(resource=self._handle)

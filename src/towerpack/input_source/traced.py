"""Batches that TensorFlow makes, read by traced calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.input_source.buffer import STACK_BYTES, Batches


class TracedReader:
    """Calls a traced function that makes one batch: once, or many times into a stack.

    `make(*arguments)` returns the tensors of a batch. They are stacked if their shapes are
    complete, as then all batches have them.
    """

    def __init__(self, make: Callable[..., Sequence[Any]], *arguments: Any):
        self._one = tf.function(lambda *given: list(make(*given)), autograph=False)
        self.outputs = self._one.get_concrete_function(*arguments).structured_outputs
        self.shapes = [tensor.shape for tensor in self.outputs]
        self._stacks = all(shape.is_fully_defined() for shape in self.shapes)
        self._many: dict[int, Any] = {}  # by the rows of the stack

    def read(self, limit: int, group: int, rows: int, *arguments: Any) -> Batches:
        if limit > group and rows > 1 and self._stacks:
            rows = self._rows(rows, group)
            count = min(limit, rows) // group * group
            if rows not in self._many:
                self._many[rows] = tf.function(
                    lambda count, *given: self._stack(rows, count, *given), autograph=False
                )
            stack = self._many[rows](tf.constant(count), *arguments)
            return Batches([stack], 0, count)
        return Batches([self._one(*arguments) for _ in range(group)], 0, group, stacked=False)

    def _rows(self, rows: int, group: int) -> int:
        pairs = zip(self.outputs, self.shapes, strict=True)
        size = sum(tensor.dtype.size * math.prod(shape) for tensor, shape in pairs)
        rows = min(rows, STACK_BYTES // max(1, size))
        return max(rows - rows % group, group)

    def _stack(self, rows: int, count: Any, *arguments: Any) -> list[Any]:
        """`count` batches, each component stacked, with zeros after the last."""
        arrays = [
            tf.TensorArray(tensor.dtype, size=rows, element_shape=tensor.shape)
            for tensor in self.outputs
        ]

        def body(row: Any, *arrays: Any) -> tuple[Any, ...]:
            batch = self._one(*arguments)
            pairs = zip(arrays, batch, strict=True)
            return (row + 1, *[array.write(row, tensor) for array, tensor in pairs])

        _, *arrays = tf.while_loop(
            lambda row, *_: row < count, body, (tf.constant(0), *arrays), parallel_iterations=1
        )
        return [array.stack() for array in arrays]

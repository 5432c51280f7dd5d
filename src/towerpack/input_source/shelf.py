"""Batches on their way from one thread to another, stacked while they wait."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ALIGNMENT = 64  # bytes: TensorFlow takes arrays that begin at a multiple of it without a copy


class Stack(NamedTuple):
    """Batches of one form: an array for each component, with a row for each batch.

    They are in the rows from `first` on. Other rows may be written meanwhile.
    """

    arrays: list[np.ndarray]
    first: int


class Block:
    """Room for some batches of one form, in rows that are filled, and then taken, in order."""

    def __init__(self, batch: Sequence[np.ndarray], rows: int):
        self.arrays = [aligned_empty((rows, *array.shape), array.dtype) for array in batch]
        self.rows, self.filled, self.taken = rows, 0, 0

    def fits(self, batch: Sequence[np.ndarray]) -> bool:
        return self.filled < self.rows and all(
            array.shape == stack.shape[1:] and array.dtype == stack.dtype
            for array, stack in zip(batch, self.arrays, strict=True)
        )

    def like(self) -> Block:
        """An empty one for batches of the same form."""
        return Block([array[0] for array in self.arrays], self.rows)


class Gap:
    """The next rows of a block, to be filled at once with as many batches or fewer."""

    def __init__(self, block: Block, rows: int):
        self.block, self.rows = block, rows
        # Of several components of one form, the last: if another one was written there, `fill`
        # moves that away before it comes to the last.
        self._free = {
            (array.shape[2:], array.dtype): array for array in block.arrays if array.ndim > 1
        }

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Room for the rows of some batches, one after another: in the gap, where it fits."""
        array = self._free.get((tuple(shape[1:]), np.dtype(dtype)))
        if array is not None:
            batches, rest = divmod(shape[0], array.shape[1] or 1)
            if not rest and batches <= self.rows:
                del self._free[array.shape[2:], array.dtype]
                return self._target(array, batches).reshape(shape)
        return np.empty(shape, dtype)

    def fill(self, stack: Sequence[np.ndarray]) -> None:
        """Writes stacked batches, each in an array, of which some may be in place already."""
        for array, component in zip(self.block.arrays, stack, strict=True):
            target = self._target(array, len(component))
            if component.ctypes.data != target.ctypes.data:
                target[...] = component

    def _target(self, array: np.ndarray, batches: int) -> np.ndarray:
        return array[self.block.filled : self.block.filled + batches]


class Shelf:
    """A bounded line of batches between two threads, of which one puts and the other takes.

    In order. `put` copies the batch, next to the one before it if both have the same form, and
    waits while there are `room` batches that were not taken. Up to `rows` consecutive batches can
    then be taken without another copy.
    """

    def __init__(self, rows: int, room: int):
        self.rows, self.room = rows, room
        self._blocks: deque[Block] = deque()
        self._count = 0
        self._closed = False
        self._change = threading.Condition()

    def __len__(self) -> int:
        return self._count

    def put(self, batch: Sequence[np.ndarray]) -> None:
        """Adds a batch; after `close` it is dropped."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._count < self.room)
            if self._closed:
                return
            if not self._blocks or not self._blocks[-1].fits(batch):
                self._blocks.append(Block(batch, self.rows))
            block = self._blocks[-1]
        # Nobody looks at a row before it is counted.
        for stack, array in zip(block.arrays, batch, strict=True):
            stack[block.filled] = array
        self.add(block, 1)

    def gap(self, most: int) -> Gap | None:
        """Where the next batches go, if they are like the last one; None if there was none yet.

        Waits as `put` does; None after `close`.
        """
        with self._change:
            if not self._blocks:
                return None
            self._change.wait_for(lambda: self._closed or self._count < self.room)
            if self._closed:
                return None
            block = self._blocks[-1]
            if block.filled == block.rows:
                block = block.like()
                self._blocks.append(block)
            return Gap(block, min(most, self.room - self._count, block.rows - block.filled))

    def add(self, block: Block, batches: int) -> None:
        """Adds batches that were written into the next rows of the last block."""
        with self._change:
            block.filled += batches
            self._count += batches

    def in_line(self) -> int:
        """How many batches can be taken until the first block ends."""
        with self._change:
            first = self._first()
            return self.rows if first is None else first.rows - first.taken

    def take(self, count: int) -> Stack:
        """The next `count` batches: they must be there, and `in_line`."""
        with self._change:
            first = self._first()
            if first is None or first.filled - first.taken < count:
                raise RuntimeError(f"expected {count} batches in line, {self._count} are there")
            first.taken += count
            self._free(count)
            return Stack(first.arrays, first.taken - count)

    def pop(self) -> list[np.ndarray]:
        """The next batch, which must be there."""
        with self._change:
            first = self._first()
            if first is None or not self._count:
                raise RuntimeError("expected wait() before batches are taken: there is none")
            first.taken += 1
            self._free(1)
            return [array[first.taken - 1] for array in first.arrays]

    def _first(self) -> Block | None:
        """The block that the next batch is in, or will be."""
        while self._blocks and self._blocks[0].taken == self._blocks[0].filled:
            # One that is not full has ended too, if the batch behind it was of another form.
            if len(self._blocks) == 1 and self._blocks[0].filled < self.rows:
                break
            self._blocks.popleft()
        return self._blocks[0] if self._blocks else None

    def _free(self, count: int) -> None:
        self._count -= count
        self._change.notify_all()

    def close(self) -> None:
        """Ends the waiting of a `put`."""
        with self._change:
            self._closed = True
            self._change.notify_all()


def stacked(batches: Sequence[Sequence[np.ndarray]], rows: int) -> Stack:
    """Batches of one form in arrays of `rows` rows."""
    block = Block(batches[0], rows)
    for row, batch in enumerate(batches):
        for stack, array in zip(block.arrays, batch, strict=True):
            stack[row] = array
    return Stack(block.arrays, 0)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)

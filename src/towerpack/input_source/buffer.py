"""Batches that wait on the host, between the thread that reads them and the steps."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf

ALIGNMENT = 64  # bytes: TensorFlow uses arrays that begin at a multiple of it without a copy
STACK_BYTES = 16 << 20  # of the batches that are stacked together: two such stacks are in memory


class Batches:
    """Consecutive batches, as a source hands them out: `count` of them, for one step or more.

    Stacked, they are rows of arrays: batch `n` is row `first + n` of the only stack. If there is a
    stack for each tower, on its device, batch `n` is row `first + n // towers` of stack
    `n % towers`. Batches of different shapes are not stacked: `stacks[n]` then is batch `n`.
    """

    def __init__(
        self, stacks: Sequence[Sequence[Any]], first: int, count: int, stacked: bool = True
    ):
        self.stacks, self.first, self.count, self.stacked = stacks, first, count, stacked

    def batch(self, number: int) -> list[Any]:
        """One batch: an array or a tensor for each input."""
        if not self.stacked:
            return list(self.stacks[number])
        row, tower = divmod(number, len(self.stacks))
        return [_row(array, self.first + row) for array in self.stacks[tower]]

    def tensors(self, number: int) -> list[Any]:
        return [as_tensor(component) for component in self.batch(number)]

    def split(self, count: int) -> tuple[Batches, Batches]:
        """The first `count` of stacked batches, a multiple of the number of stacks; the rest."""
        rest = Batches(self.stacks, self.first + count // len(self.stacks), self.count - count)
        return Batches(self.stacks, self.first, count), rest


def _row(stack: Any, row: int) -> Any:
    if isinstance(stack, np.ndarray):
        return stack[row]
    with tf.device(stack.device):  # else TensorFlow would copy it to the first GPU
        return stack[row]


class Block:
    """Room for batches of one form, in rows that are filled, and then taken, in order."""

    def __init__(self, arrays: list[np.ndarray], filled: int = 0):
        self.arrays, self.filled, self.taken = arrays, filled, 0
        self.rows = len(arrays[0])

    @classmethod
    def like(cls, batch: Sequence[np.ndarray], rows: int) -> Block:
        return cls([aligned_empty((rows, *array.shape), array.dtype) for array in batch])

    @property
    def ready(self) -> int:
        return self.filled - self.taken

    def fits(self, batch: Sequence[np.ndarray]) -> bool:
        """Whether a batch has the form of the others."""
        return all(
            array.shape == stack.shape[1:] and array.dtype == stack.dtype
            for array, stack in zip(batch, self.arrays, strict=True)
        )

    def pop(self) -> list[np.ndarray]:
        self.taken += 1
        return [array[self.taken - 1] for array in self.arrays]


class Buffer:
    """A bounded line of batches, of which one thread puts some and another takes them, in order.

    The consumer's `take` says how many batches to stack in a block. With 1, a batch keeps its own
    arrays. The memory of a block is new, and a row is not written again once it is filled.
    """

    def __init__(self, size: int):
        self._size = size
        self._stack = (1, 1)  # the rows of a block, and of how many it must be a multiple
        self._blocks: deque[Block] = deque()
        self.count = 0
        self.ended = self._closed = False
        self._awaited = 0  # the number of batches that the consumer waits for
        self._change = threading.Condition()

    @property
    def room(self) -> int:
        """How many batches may wait: one stack fills while steps work on another."""
        last = self._blocks[-1].arrays if self._blocks and self._stack[0] > 1 else []
        rows = self._rows([array[0] for array in last])
        return max(self._size, 2 * rows if self._stack[0] > 1 else rows)

    def _rows(self, batch: Sequence[np.ndarray]) -> int:
        """How many rows a block has for batches of this form."""
        rows, multiple = self._stack
        if batch and rows > 1:
            rows = min(rows, STACK_BYTES // max(1, sum(array.nbytes for array in batch)))
        return max(rows - rows % multiple, multiple)

    # The thread that puts

    def put(self, batch: Sequence[np.ndarray], keep: bool = False) -> None:
        """Adds a copy of a batch, or its own arrays (`keep`), once there is room.

        It is dropped if the buffer is closed.
        """
        with self._change:
            self._change.wait_for(lambda: self._closed or self.count < self.room)
            if self._closed:
                return
            rows = self._rows(batch)
            last = self._blocks[-1] if self._blocks else None
        if rows == 1 and keep:
            block = Block([array[None] for array in batch])
        elif last is not None and last.filled < last.rows == rows and last.fits(batch):
            block = last
        else:
            block = Block.like(batch, rows)
        if not (rows == 1 and keep):  # the consumer does not read a row before it is counted
            for stack, array in zip(block.arrays, batch, strict=True):
                stack[block.filled] = array
        self._add(block, 1)

    def space(self) -> int:
        """How many batches to stack next, after waiting for room; 0 where they are not stacked."""
        with self._change:
            if self._stack[0] == 1 or not self._blocks:
                return 0
            last = self._blocks[-1]
            rows = self._rows([array[0] for array in last.arrays])
            open_rows = last.rows - last.filled if last.rows == rows else 0
            wanted = open_rows or rows
            self._change.wait_for(
                lambda: (
                    self._closed
                    or self.count + wanted <= self.room
                    or (self._awaited > self.count and self.count < self.room)
                )
            )
            return 0 if self._closed else min(wanted, self.room - self.count)

    def put_stack(self, stack: Sequence[np.ndarray], count: int, owned: bool) -> None:
        """Adds `count` batches of one form, stacked, for which `space` has found room.

        `owned` arrays belong to the buffer: a whole stack of them is used as it is.
        """
        done = 0
        while done < count:
            batch = [array[done] for array in stack]
            with self._change:
                if self._closed:
                    return
                rows = self._rows(batch)
                last = self._blocks[-1] if self._blocks else None
            if last is not None and last.filled < last.rows == rows and last.fits(batch):
                block = last
            elif owned and not done and count == rows:
                self._add(Block(list(stack)), count)
                return
            else:
                block = Block.like(batch, rows)
            part = min(count - done, block.rows - block.filled)
            for rows_of, array in zip(block.arrays, stack, strict=True):
                rows_of[block.filled : block.filled + part] = array[done : done + part]
            self._add(block, part)
            done += part

    def _add(self, block: Block, batches: int) -> None:
        with self._change:
            if self._closed:
                return
            if not self._blocks or self._blocks[-1] is not block:
                self._blocks.append(block)
            block.filled += batches
            self.count += batches
            if 0 < self._awaited <= self.count:
                self._change.notify_all()

    def end(self) -> None:
        """No more batches will come."""
        with self._change:
            self.ended = True
            self._change.notify_all()

    # The thread that takes

    def wait(self, batches: int, seconds: float | None = None) -> tuple[int, bool]:
        """Waits until `batches` are here, or as many as there is room for.

        Returns how many are, and whether that is final until some are taken.
        """
        with self._change:
            target = min(batches, self.room)
            if self.count < target and not self.ended:
                self._awaited = target
                self._change.notify_all()  # a producer may wait for room for a whole stack
                self._change.wait_for(lambda: self.ended or self.count >= target, seconds)
                self._awaited = 0
            return self.count, self.ended or self.count >= target

    def take(self, limit: int, group: int, rows: int) -> Batches:
        """The next batches: at most `limit`, and a multiple of `group`. `group` must be here.

        The blocks to come have `rows` rows. All batches of a call are of one form and in one block,
        except those of a single group.
        """
        with self._change:
            if self._stack != (rows, group):
                self._stack = (rows, group)
            block = self._front()
            if limit > group and rows > 1:
                wanted = self._rows([array[0] for array in block.arrays])
                if block.rows != wanted:  # from before `rows` changed
                    block = self._joined(min(limit, wanted), group, wanted) or block
            count = min(block.ready, limit) if rows > 1 else min(block.ready, group)
            count -= count % group
            if count:
                batches = Batches([block.arrays], block.taken, count)
                block.taken += count
            else:
                separate = [self._front().pop() for _ in range(group)]
                batches = Batches(separate, 0, group, stacked=False)
            self.count -= batches.count
            self._change.notify_all()
            return batches

    def _front(self) -> Block:
        """The block that the next batch is in; empty ones before it go."""
        while len(self._blocks) > 1 and not self._blocks[0].ready:
            self._blocks.popleft()
        if self._blocks[0].ready:
            return self._blocks[0]
        raise RuntimeError("expected wait() before batches are taken: there is none")

    def _joined(self, limit: int, group: int, rows: int) -> Block | None:
        """A new block with copies of the next batches, as far as they are of one form."""
        sizes: list[tuple[Block, int]] = []
        first, total = self._front(), 0
        for block in self._blocks:
            if not block.fits([array[0] for array in first.arrays]) or total == limit:
                break
            sizes.append((block, min(block.ready, limit - total)))
            total += sizes[-1][1]
        if total < group:
            return None
        joined = Block([aligned_empty((rows, *a.shape[1:]), a.dtype) for a in first.arrays])
        for block, count in sizes:
            count = min(count, total - total % group - joined.filled)
            for stack, array in zip(joined.arrays, block.arrays, strict=True):
                part = array[block.taken : block.taken + count]
                stack[joined.filled : joined.filled + count] = part
            block.taken += count
            joined.filled += count
        return joined

    def close(self) -> None:
        """Ends all waiting, also that of a `put`."""
        with self._change:
            self._closed = self.ended = True
            self._change.notify_all()


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """New memory that TensorFlow can use without a copy."""
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        return np.empty(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    # Rows that stay empty are converted too, where not every number is a character.
    memory = (np.zeros if dtype.kind == "U" else np.empty)(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def as_tensor(array: Any) -> Any:
    """Shares the array's memory with the tensor where TensorFlow can use it, else copies it.

    `from_dlpack` accepts memory at any address, but TensorFlow's kernels end the process if it is
    not aligned. Small datapoints of one worker task lie side by side, so most are not aligned.

    The array must not be written to any more. It is released, in any thread, with the tensor.
    """
    if not isinstance(array, np.ndarray):
        return tf.convert_to_tensor(array)
    if array.ctypes.data % ALIGNMENT == 0:
        try:
            return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        except (BufferError, tf.errors.OpError):
            pass  # a dtype or a memory order that DLPack or TensorFlow does not accept
    # Of other arrays too TensorFlow may use the memory itself: none of ours is written again.
    return tf.convert_to_tensor(array)

"""Shared memory: slots in which workers make datapoints and the consumer reads them.

Each pool has one anonymous shared file, and slot k begins at k * SLOT_SPAN. The file is sparse, so
a slot takes only the memory that was written, and a slot grows when more of it is mapped. Slots are
reused, so their pages are faulted in once and not for every batch.

The consumer receives arrays that are views of a slot. All of them are views of one *root* array,
which is created anew each time a slot is handed out. numpy keeps the root alive for every slice,
transpose or reinterpretation, in any thread, so the slot is free again when its root dies.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import pickle
import tempfile
import weakref
from collections import deque
from typing import Any

import numpy as np

SLOT_SPAN = 1 << 38  # 256 GB of addresses: no datapoint is larger, and addresses cost nothing
MAX_SLOTS = 1 << 14
MIN_MAPPING = 1 << 20  # mapping less than a megabyte saves nothing
ALIGNMENT = 64  # a cache line, and enough for any vector load


def anonymous_file(size: int = 0) -> int:
    """A descriptor of a new, sparse file of zeros that has no name.

    It disappears with its last descriptor and its last mapping. `memfd_create` is used where it
    exists: it is not limited by `/dev/shm` and leaves nothing behind after a crash. An unlinked
    temporary file replaces it elsewhere, which is slower.
    """
    open_standard_descriptors()
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("towerpack", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EFBIG:
            error.add_note(
                f"the shared memory of workers reserves {size} bytes of addresses in a sparse file "
                "(it takes no memory yet), and this process may not create a file of that size: "
                "raise the limit (ulimit -f unlimited)"
            )
        raise
    return descriptor


def open_standard_descriptors() -> None:
    """Opens descriptors 0 to 2 on /dev/null if they are closed.

    Otherwise the next files and sockets would get these numbers, and a worker would use them as its
    stdin, stdout and stderr. Every pool and every payload begins with a shared file, so this comes
    first.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number


class SlotMapping(mmap.mmap):
    """The mapped memory of a slot, as a type by which `is_in_slot` recognizes it."""


def is_in_slot(array: np.ndarray) -> bool:
    """Whether an array lies in a slot, which is not written again as long as the array lives."""
    owner: Any = array
    while owner is not None and not isinstance(owner, SlotMapping):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner is not None


class SharedSlots:
    """The shared file, and this process's mappings of its slots."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self._mappings: dict[int, SlotMapping] = {}

    @classmethod
    def create(cls) -> SharedSlots:
        return cls(anonymous_file(SLOT_SPAN * MAX_SLOTS))

    def root(self, slot: int, size: int = 0) -> np.ndarray:
        """A new array of bytes over the slot, at least `size` long."""
        if size > SLOT_SPAN:
            raise ValueError(f"expected a datapoint of at most {SLOT_SPAN} bytes, received {size}")
        mapping = self._mappings.get(slot)
        if mapping is None or len(mapping) < size:
            length = max(MIN_MAPPING, 1 << size.bit_length())
            # Arrays over the earlier, shorter mapping keep it alive. Both map the same memory.
            mapping = SlotMapping(self.descriptor, length, offset=slot * SLOT_SPAN)
            self._mappings[slot] = mapping
        return np.frombuffer(mapping, np.uint8)

    def load(self, slot: int, place: int, size: int) -> Any:
        """The object whose pickle lies in the slot."""
        data = self.root(slot, place + size)[place : place + size].data
        return pickle.loads(data)  # noqa: S301 (a process of ours wrote it)

    def close(self) -> None:
        """Frees the memory, except what existing arrays refer to."""
        self._mappings.clear()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class SlotWriter:
    """Fills one slot: `allocate` makes arrays in it, `put` copies bytes into it."""

    def __init__(self, slots: SharedSlots, slot: int):
        self._slots, self._slot = slots, slot
        self._roots = [slots.root(slot)]
        self.position = 0

    def allocate(self, shape: int | tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """`numpy.empty`, in the slot."""
        kind = np.dtype(dtype)
        if kind.hasobject:
            return np.empty(shape, kind)
        size = shape if isinstance(shape, int) else math.prod(shape)
        place = self._reserve(size * kind.itemsize)
        return np.ndarray(shape, kind, self._roots[-1], place)

    def _reserve(self, size: int) -> int:
        """The place of `size` unused bytes."""
        place = self.position + -self.position % ALIGNMENT
        self.position = place + size
        if self.position > len(self._roots[-1]):
            self._roots.append(self._slots.root(self._slot, self.position))
        return place

    def put(self, data: bytes | memoryview) -> int:
        """Copies bytes into the slot, and returns their place."""
        place = self._reserve(len(data))
        self._roots[-1].data[place : place + len(data)] = data
        return place

    def place_of(self, array: np.ndarray) -> int | None:
        """The place of an array that lies in the slot; None if it does not, or not in C order."""
        if array.flags.c_contiguous:
            address = _address(array)
            for root in self._roots:
                place = address - _address(root)
                if 0 <= place < len(root):
                    return place
        return None

    def release(self) -> list[weakref.ref[np.ndarray]]:
        """Drops the writer's own references to the slot.

        A weak reference in the result that is still alive means that an array in the slot is too.
        """
        references = [weakref.ref(root) for root in self._roots]
        self._roots.clear()
        return references


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class Pins:
    """The slots whose arrays the consumer holds. A root may die in any thread, at any moment."""

    def __init__(self) -> None:
        self._released: deque[tuple[int, int]] = deque()  # slots and sizes; appending is atomic
        self.count = self.bytes = 0

    def hold(self, slot: int, root: np.ndarray, size: int) -> None:
        weakref.finalize(root, self._released.append, (slot, size)).atexit = False
        self.count += 1
        self.bytes += size

    def released(self) -> list[int]:
        """The slots that have become free since the last call."""
        slots = []
        while self._released:
            slot, size = self._released.popleft()
            self.count -= 1
            self.bytes -= size
            slots.append(slot)
        return slots

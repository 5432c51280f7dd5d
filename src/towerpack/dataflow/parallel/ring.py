"""Slots of shared memory that datapoints are made in, read from, and made in again.

One nameless shared file for each pool; slot k begins at k times SLOT_SPAN of it. The file is
sparse, so that a slot costs what was written to it, and growing one is only mapping more of it.
Slots are used again and again: their pages are touched once, not for each batch.

The reader gets arrays that are views of a slot. All of them are views of one *root* array, made
anew whenever a slot is handed out, so that the slot is free again when that root dies: numpy keeps
it alive for every slice, transpose or reinterpretation, in whatever thread.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import deque

import numpy as np

from towerpack.core.shared_file import anonymous_file

SLOT_SPAN = 1 << 38  # 256 GB of addresses: no datapoint is larger, and addresses cost nothing
MAX_SLOTS = 1 << 14
MIN_MAPPING = 1 << 20  # mapping less than a megabyte saves nothing
ALIGNMENT = 64  # a cache line, and enough for any vector load


class SlotMapping(mmap.mmap):
    """The memory of a slot, told apart from any other."""


def is_in_slot(array: np.ndarray) -> bool:
    """Whether an array lies in a slot: nobody writes there as long as the array is kept."""
    buffer = getattr(array.base, "base", None)  # of the root
    return isinstance(getattr(buffer, "obj", None), SlotMapping)


class SharedSlots:
    """The shared file and this process's mappings of its slots."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self._mappings: dict[int, SlotMapping] = {}

    @classmethod
    def create(cls) -> SharedSlots:
        return cls(anonymous_file(SLOT_SPAN * MAX_SLOTS))

    def root(self, slot: int, size: int) -> np.ndarray:
        """A new array of bytes over the slot, at least `size` long."""
        if size > SLOT_SPAN:
            raise ValueError(f"a datapoint of {size} bytes; at most {SLOT_SPAN} fit into a slot")
        mapping = self._mappings.get(slot)
        if mapping is None or len(mapping) < size:
            length = max(MIN_MAPPING, 1 << (size - 1).bit_length())
            # Arrays over an older, shorter mapping stay valid: they keep it, and it is the same
            # memory.
            mapping = SlotMapping(self.descriptor, length, offset=slot * SLOT_SPAN)
            self._mappings[slot] = mapping
        return np.frombuffer(mapping, np.uint8)

    def close(self) -> None:
        """Gives the memory back, less what arrays still show."""
        self._mappings.clear()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class SlotWriter:
    """Fills one slot: arrays made in place by `allocate`, everything else copied in by `put`."""

    def __init__(self, slots: SharedSlots, slot: int, expected: int = MIN_MAPPING):
        self._slots, self._slot = slots, slot
        self._roots = [slots.root(slot, expected)]
        self._made: dict[int, tuple[np.ndarray, int]] = {}  # by id: the arrays made here
        self.position = 0

    def allocate(self, shape: int | tuple[int, ...], dtype: object = np.float64) -> np.ndarray:
        """`numpy.empty`, in the slot."""
        kind = np.dtype(dtype)  # type: ignore[call-overload]
        if kind.hasobject:
            return np.empty(shape, kind)
        size = shape if isinstance(shape, int) else math.prod(shape)
        place = self.reserve(size * kind.itemsize)
        array = self.array_at(place, shape, kind)
        self._made[id(array)] = array, place
        return array

    def array_at(self, place: int, shape: int | tuple[int, ...], dtype: object) -> np.ndarray:
        """The array at a place that was reserved for it."""
        return np.ndarray(shape, np.dtype(dtype), self._roots[-1], place)  # type: ignore[call-overload]

    def reserve(self, size: int) -> int:
        """The place of `size` unused bytes."""
        place = self.position + -self.position % ALIGNMENT
        self.position = place + size
        if self.position > len(self._roots[-1]):
            self._roots.append(self._slots.root(self._slot, self.position))
        return place

    def put(self, data: bytes | memoryview) -> int:
        """Copies bytes into the slot; returns their place."""
        place = self.reserve(len(data))
        self._roots[-1].data[place : place + len(data)] = data
        return place

    def put_behind(self, data: bytes) -> None:
        """Copies bytes to where the last ones ended, aligned or not."""
        place = self.position
        self.position += len(data)
        if self.position > len(self._roots[-1]):
            self._roots.append(self._slots.root(self._slot, self.position))
        self._roots[-1].data[place : place + len(data)] = data

    def place_of(self, array: np.ndarray) -> int | None:
        """Where in the slot an array already is; None if it is elsewhere or not in C order."""
        made = self._made.get(id(array))
        if made is not None:
            return made[1]
        base = array.base
        if base is None or not array.flags.c_contiguous:
            return None
        for root in self._roots:
            if base is root:
                return int(_address(array) - _address(root))
        return None

    def watch(self) -> list[weakref.ref[np.ndarray]]:
        """Lets go of the slot; a reference that still answers means that somebody has an array."""
        watching = [weakref.ref(root) for root in self._roots]
        self._roots.clear()
        self._made.clear()
        return watching


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class Pin(weakref.ref):
    """A slot that is handed out: told when the last view of its root is gone."""

    __slots__ = ("size", "slot")
    slot: int
    size: int


class Pins:
    """Which slots the consumer still sees. Roots may die in any thread, and in a collection."""

    def __init__(self) -> None:
        self._held: dict[int, Pin] = {}
        self._released: deque[weakref.ref] = deque()  # its append is atomic: all a callback may do
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, slot: int, root: np.ndarray, size: int) -> None:
        pin = Pin(root, self._released.append)
        pin.slot, pin.size = slot, size
        self._held[slot] = pin
        self.bytes += size

    def released(self) -> list[int]:
        """The slots that have become free since the last call."""
        slots = []
        while self._released:
            pin = self._released.popleft()
            if isinstance(pin, Pin) and self._held.pop(pin.slot, None) is not None:
                self.bytes -= pin.size
                slots.append(pin.slot)
        return slots

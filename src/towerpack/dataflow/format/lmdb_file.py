"""LMDB's file format, read by offset.

The lmdb library maps the file into memory: a truncated file then kills the process with SIGBUS, and
a damaged page may do worse. Here the tree is walked once, every number in it checked, and each
value is then one read at a known offset: no library, no lock file, no limit of readers, and threads
and workers share it freely. It is for data sets at rest; a database that is being written to at the
same time belongs to the lmdb library.

Layout (version 1, 64 bits, little-endian): pages of one size; pages 0 and 1 each hold a meta
record, the one with the higher transaction number counts; from its root a B+ tree of branch and
leaf pages; values that do not fit into a leaf lie on overflow pages of their own.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.file_at import FileAt

MAGIC, VERSION = 0xBEEFC0DE, 1
PAGE_HEADER = 16
NODE_HEADER = 8
MAX_DEPTH = 32  # LMDB's own limit
MAX_PAGE = 65536
NO_PAGE = (1 << 64) - 1  # the root of an empty database
BRANCH, LEAF = 0x01, 0x02
BIG_DATA, SUB_DATA, DUP_DATA = 0x01, 0x02, 0x04

# magic, version, address, map size; then two databases; then last page and transaction
_META = struct.Struct("<IIQQ" + "IHHQQQQQ" * 2 + "QQ")
_PAGE = struct.Struct("<QHHHH")  # number, padding, flags, end of the pointers, begin of the nodes
_BRANCH_NODE = struct.Struct("<IH")  # the child's page number: 48 bits


class LMDBFile:
    """The keys of an LMDB database in their order, and each value by its number.

    Opening costs one walk over the leaf pages, some microseconds for each record. What is
    kept is small and travels to workers; the file is opened in each of them anew.
    """

    def __init__(self, path: str | Path):
        path = Path(path).expanduser()
        self.path = path / "data.mdb" if path.is_dir() else path
        self.file = FileAt(self.path)
        self._read_meta()
        keys: list[bytes] = []
        offsets: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        self._pages_left = self._last_page + 1  # a loop among damaged pages ends here
        if self._root != NO_PAGE:
            self._walk(self._root, 0, keys, offsets, sizes)
        self.offsets = np.concatenate(offsets) if offsets else np.empty(0, np.int64)
        self.sizes = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
        # One block of bytes instead of a million objects: quick to send to a worker.
        self._key_bytes = b"".join(keys)
        self._key_ends = np.cumsum([0, *map(len, keys)], dtype=np.int64)
        if len(keys) != self._entries:
            raise self._damaged(f"it says {self._entries} records, its tree holds {len(keys)}")
        if not self._flags and any(a >= b for a, b in itertools.pairwise(keys)):
            raise self._damaged("the keys in its tree are not in order")
        if len(np.unique(self.offsets)) != len(self.offsets):
            raise self._damaged("two records have their values in the same place")

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, number: int) -> bytes:
        ends = self._key_ends
        return self._key_bytes[ends.item(number) : ends.item(number + 1)]

    def find(self, key: bytes) -> int | None:
        """The number of one key; for many, `numbers` is quicker."""
        if self._flags:  # then the keys are not in the order of their bytes
            return self.numbers().get(key)
        number = bisect.bisect_left(range(len(self)), key, key=self.key)
        return number if number < len(self) and self.key(number) == key else None

    def numbers(self) -> dict[bytes, int]:
        """The number of every key."""
        return {self.key(number): number for number in range(len(self))}

    def value(self, number: int) -> bytearray:
        """The value of record `number`; `CorruptRecord` if the file does not have it."""
        return self.file.read(*self._place(number))

    def value_bytes(self, number: int) -> bytes:
        return self.file.read_bytes(*self._place(number))

    def _place(self, number: int) -> tuple[int, int, Callable[[], str]]:
        def name() -> str:
            return f"the value of key {self.key(number)!r}"

        return self.offsets.item(number), self.sizes.item(number), name

    def _damaged(self, reason: str) -> CorruptRecord:
        return CorruptRecord(f"{self.path} is a damaged or truncated LMDB file: {reason}")

    def _read_meta(self) -> None:
        first = self._meta_at(0)
        if first is None:
            raise CorruptRecord(
                f"{self.path} is no LMDB file of version {VERSION} (64 bits, little-endian)"
            )
        self._page_size: int = first[4]  # LMDB keeps it in an unused field of its free list
        size = self._page_size
        if size < 512 or size > MAX_PAGE or size & (size - 1):
            raise self._damaged(f"a page size of {size}")
        second = self._meta_at(size)
        if second is None:
            raise self._damaged("its second meta page")
        # LMDB writes them in turn: transaction n to page n mod 2, which leaves n - 1 on the other.
        # A number that was damaged would make an older state of the database the latest one.
        transactions = first[-1], second[-1]
        in_turn = transactions[0] % 2 == 0 and abs(transactions[0] - transactions[1]) == 1
        if transactions != (0, 0) and not in_turn:
            raise self._damaged(f"its meta pages say transactions {transactions}")
        latest = max(first, second, key=lambda meta: meta[-1])
        main = latest[12:20]  # pad, flags, depth, branch, leaf and overflow pages, entries, root
        self._flags, self._entries, self._root = main[1], main[6], main[7]
        self._last_page = latest[-2]

    def _meta_at(self, offset: int) -> tuple[int, ...] | None:
        try:
            raw = self.file.read(offset + PAGE_HEADER, _META.size, "the meta page")
        except CorruptRecord:
            return None
        meta = _META.unpack(raw)
        return meta if meta[0] == MAGIC and meta[1] == VERSION else None

    def _walk(self, number: int, depth: int, keys: list, offsets: list, sizes: list) -> None:
        self._pages_left -= 1
        if depth > MAX_DEPTH or self._pages_left < 0:
            raise self._damaged("its tree has a loop")
        if number > self._last_page:
            raise self._damaged(f"page {number} is asked for, the last is {self._last_page}")
        page = bytes(self.file.read(number * self._page_size, self._page_size, f"page {number}"))
        own_number, _, flags, lower, upper = _PAGE.unpack_from(page)
        if own_number != number or not PAGE_HEADER <= lower <= upper <= self._page_size:
            raise self._damaged(f"page {number} has no valid header")
        pointers = np.frombuffer(page, "<u2", (lower - PAGE_HEADER) // 2, PAGE_HEADER)
        pointers = pointers.astype(np.int64)
        if np.any((pointers < lower) | (pointers > self._page_size - NODE_HEADER) | pointers & 1):
            raise self._damaged(f"page {number} has a node outside itself")
        if flags & BRANCH:
            for pointer in pointers.tolist():
                low, high = _BRANCH_NODE.unpack_from(page, pointer)
                self._walk(low | high << 32, depth + 1, keys, offsets, sizes)
        elif flags & LEAF:
            self._read_leaf(page, number, pointers, keys, offsets, sizes)
        else:
            raise self._damaged(f"page {number} is neither branch nor leaf")

    def _read_leaf(
        self,
        page: bytes,
        number: int,
        pointers: np.ndarray,
        keys: list[bytes],
        offsets: list[np.ndarray],
        sizes: list[np.ndarray],
    ) -> None:
        words = np.frombuffer(page, "<u2").astype(np.int64)
        node = pointers >> 1
        value_size = words[node] | words[node + 1] << 16
        flags, key_size = words[node + 2], words[node + 3]
        if np.any(flags & (SUB_DATA | DUP_DATA)):
            raise ValueError(
                f"{self.path} has named databases or several values for a key; expected one plain "
                "database: copy it with the lmdb library"
            )
        big = (flags & BIG_DATA) != 0
        start = pointers + NODE_HEADER + key_size
        if np.any(start + np.where(big, 8, value_size) > self._page_size):
            raise self._damaged(f"page {number} has a record that reaches past its end")
        keys += [
            page[a:b]
            for a, b in zip((pointers + NODE_HEADER).tolist(), start.tolist(), strict=True)
        ]
        offset = number * self._page_size + start
        if big.any():
            content = np.frombuffer(page, np.uint8)
            where = start[big][:, None] + np.arange(8)
            overflow = content[where].copy().view("<u8")[:, 0]
            if np.any(overflow > self._last_page):
                raise self._damaged(f"page {number} points to a value behind the last page")
            offset[big] = overflow.astype(np.int64) * self._page_size + PAGE_HEADER
        offsets.append(offset)
        sizes.append(value_size)

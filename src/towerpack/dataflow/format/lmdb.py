"""LMDB databases: read by offset, and written by the lmdb library.

The lmdb library maps the file into memory and follows the page numbers in it unchecked. One flipped
bit in a page is then enough to kill the process with SIGBUS, and comparing the size of the file
does not prevent it. So the library does not read here (about 110 lines do, `_Tree`): the tree is
walked once, every number in it is checked, and each value is then one read at a known offset. That
needs no lock file and no limit of readers, and threads and workers share it. This is for data sets
at rest; use the lmdb library for a database that is being written to at the same time.

Layout (version 1, 64 bits, little-endian): pages of one size. Pages 0 and 1 each hold a meta
record, and the one with the higher transaction number counts. It points to the root of a B+ tree of
branch and leaf pages; values that do not fit into a leaf lie on overflow pages of their own.
"""

from __future__ import annotations

import functools
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import codec
from towerpack.core.optional import require
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format.files import CorruptRecord, FileAt, Name, atomic_path
from towerpack.dataflow.format.records import OnError, RecordSource, decode_record, encode_records
from towerpack.dataflow.functions import name_of
from towerpack.dataflow.stage.map import MapData

KEYS_RECORD = b"__keys__"  # where serializers store the order of the records
UNCOMMITTED = 1 << 28  # bytes of records in one transaction: LMDB holds their pages in memory
MAP_SIZE = 1 << 41  # the largest file that can be written: address space, not memory or disk

MAGIC, VERSION = 0xBEEFC0DE, 1
PAGE_HEADER = 16
NODE_HEADER = 8
MAX_PAGE = 65536
NO_PAGE = (1 << 64) - 1  # the root of an empty database
NOWHERE = 1 << 44  # a page beyond the end of any file
BRANCH, LEAF = 0x01, 0x02
BIG_DATA, SUB_DATA, DUP_DATA = 0x01, 0x02, 0x04

# magic, version, address, map size; then two databases; then last page and transaction
_META = struct.Struct("<IIQQ" + "IHHQQQQQ" * 2 + "QQ")
_PAGE = struct.Struct("<QHHHH")  # number, padding, flags, end of the pointers, begin of the nodes
_BRANCH_NODE = struct.Struct("<IH")  # the child's page number: 48 bits
_LEAF_NODE = struct.Struct("<IHH")  # sizes of the value and, after the flags, of the key
_PAGE_NUMBER = struct.Struct("<Q")


def is_lmdb(head: bytes) -> bool:
    """Whether a file that begins with these bytes is an LMDB file."""
    return head[PAGE_HEADER : PAGE_HEADER + 4] == MAGIC.to_bytes(4, "little")


class LMDBData(RecordSource):
    """The records of an LMDB database as `[key, value]`, both bytes.

    Random access; every record once per epoch. `keys` selects the records and their order: a list
    of keys, or a pattern like '{:0>8d}' that is filled with 0, 1, 2, ... as long as there is such a
    key. By default the database's `__keys__` record decides; without one, all keys come in LMDB's
    order.

    Opening walks over the tree's pages, which takes some microseconds per record. A truncated file
    raises an error that names the record, and never SIGBUS.
    """

    def __init__(
        self,
        path: str | Path,
        shuffle: bool = False,
        keys: Iterable[bytes | str] | str | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        path = Path(path).expanduser()
        self.path = path / "data.mdb" if path.is_dir() else path
        self.file = FileAt(self.path)
        tree = _Tree(self.file)
        self.has_keys_record = KEYS_RECORD in tree.keys
        rows = self._chosen(tree, keys)
        self._offsets, self._sizes = tree.offsets[rows], tree.sizes[rows]
        chosen = [tree.keys[row] for row in rows.tolist()]
        # One block of bytes instead of a million objects, so that it is quickly sent to a worker.
        self._key_bytes = b"".join(chosen)
        self._key_ends = np.cumsum([0, *map(len, chosen)], dtype=np.int64)

    def _chosen(self, tree: _Tree, keys: Iterable[bytes | str] | str | None) -> np.ndarray:
        """The numbers of the records in the order in which they are read."""
        if keys is None and not self.has_keys_record:
            return np.arange(len(tree.keys))
        numbers = {key: number for number, key in enumerate(tree.keys)}
        if isinstance(keys, str):
            pattern = keys
            filled = (pattern.format(i).encode() for i in itertools.count())
            wanted = list(itertools.takewhile(numbers.__contains__, filled))
            if not wanted:
                raise KeyError(f"{self.path} has no key {pattern.format(0)!r}")
        elif keys is None:
            number = numbers[KEYS_RECORD]
            raw = self.file.read(tree.offsets.item(number), tree.sizes.item(number), "__keys__")
            wanted = self._listed_keys(raw, f"{self.path}, record {KEYS_RECORD!r}")
        else:
            wanted = [key.encode() if isinstance(key, str) else bytes(key) for key in keys]
        for key in wanted:
            if key not in numbers:
                # A database whose own list names a key that it lacks is damaged.
                missing = CorruptRecord if keys is None else KeyError
                raise missing(f"{self.path} has no key {key!r}")
        return np.array([numbers[key] for key in wanted], np.int64)

    def _listed_keys(self, raw: bytearray, name: str) -> list[bytes]:
        stored = self.decode(raw, name)
        if isinstance(stored, np.ndarray):
            stored = stored.tolist()
        if not isinstance(stored, list) or not all(isinstance(key, bytes | str) for key in stored):
            raise CorruptRecord(f"{name} is not a list of keys")
        return [key.encode() if isinstance(key, str) else key for key in stored]

    @staticmethod
    def decode(record: Any, name: Name) -> Any:
        """Decodes a record that a serializer wrote; `CorruptRecord` if it is damaged."""
        return decode_record(record, name)

    def count(self) -> int:
        return len(self._offsets)

    def key(self, row: int) -> bytes:
        return self._key_bytes[self._key_ends.item(row) : self._key_ends.item(row + 1)]

    def load(self, row: int) -> Any:
        return [self.key(row), self.file.read_bytes(*self._place(row))]

    def _place(self, row: int) -> tuple[int, int, Callable[[], str]]:
        name = functools.partial(self._value_name, row)
        return self._offsets.item(row), self._sizes.item(row), name

    def _value_name(self, row: int) -> str:
        return f"the value of key {self.key(row)!r}"

    def where(self, row: int) -> str:
        """The name of a record in messages."""
        return f"{self.path}, key {self.key(row)!r}"


class LMDBDataDecoder(MapData):
    """The datapoints that `decoder(key, value)` makes of the records; None drops one.

    Keeps random access and order.
    """

    def __init__(self, lmdb_data: LMDBData, decoder: Callable[[bytes, bytes], Any]):
        if not callable(decoder):
            raise TypeError(f"expected a function of key and value, received {decoder!r}")
        super().__init__(lmdb_data, functools.partial(_apply, decoder))
        self.decoder = decoder

    def label(self) -> str:
        return f"{type(self).__name__}({name_of(self.decoder)})"


def _apply(decoder: Callable[[bytes, bytes], Any], datapoint: list[bytes]) -> Any:
    return decoder(*datapoint)


class LMDBRecords(LMDBData):
    """The datapoints that `LMDBSerializer` stored.

    Random access; every datapoint once per epoch; checksums are compared.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(Path(path), shuffle, seed=seed, on_error=on_error)
        if self.has_keys_record or not self.count():
            return
        if self.file.read(*self._place(0)).startswith(codec.MAGIC):
            raise CorruptRecord(
                f"{self.path} has no record {KEYS_RECORD!r}, which LMDBSerializer writes last: the "
                "file is damaged"
            )

    def load(self, row: int) -> Any:
        # A bytearray, not bytes: the arrays are views of it, and so they are writable.
        return self.decode(self.file.read(*self._place(row)), lambda: self.where(row))


class LMDBSerializer:
    """A flow's datapoints in an LMDB file, in towerpack's codec, each with a checksum.

    `load` gives them back as a flow with random access.
    """

    load = LMDBRecords

    @staticmethod
    def save(
        df: DataFlow | Iterable[Any], path: str | os.PathLike[str], write_frequency: int = 5000
    ) -> None:
        """Writes one epoch of the flow; the keys are '00000000', '00000001', ...

        `path` is the file to create, or an existing directory to create `data.mdb` in. The file
        appears when it is whole; an existing one is an error. A transaction holds at most
        `write_frequency` datapoints.
        """
        if write_frequency < 1:
            raise ValueError(f"expected a positive write_frequency, received {write_frequency}")
        path = Path(path)
        if path.is_dir():
            path = path / "data.mdb"
        if path.exists():
            raise FileExistsError(f"{path} exists; remove it first or choose another name")
        lmdb = require("lmdb", extra="lmdb")
        with atomic_path(path) as temporary:
            # No syncs on the way: the file is synced once, when it is whole. No lock: no other
            # process knows of it.
            options = {"subdir": False, "lock": False, "sync": False, "meminit": False}
            with lmdb.open(str(temporary), map_size=MAP_SIZE, **options) as environment:
                records = encode_records(df, path)
                keys: list[bytes] = []
                while block := _next_block(records, write_frequency):
                    with environment.begin(write=True) as transaction:
                        for record in block:
                            keys.append(f"{len(keys):08}".encode())
                            transaction.put(keys[-1], record)
                with environment.begin(write=True) as transaction:
                    transaction.put(KEYS_RECORD, codec.encode(np.array(keys, np.bytes_)))


def _next_block(records: Iterator[bytes], most: int) -> list[bytes]:
    """The records of the next transaction."""
    block, size = [], 0
    for record in itertools.islice(records, most):
        block.append(record)
        size += len(record)
        if size >= UNCOMMITTED:
            break
    return block


class _Tree:
    """The keys of a database in the tree's order, and the place of each value in the file.

    `CorruptRecord` if the file is damaged so that a record would be missing or wrong in silence.
    """

    def __init__(self, file: FileAt):
        self.file, self.path = file, file.path
        self.keys: list[bytes] = []
        offsets: list[int] = []
        sizes: list[int] = []
        flags, entries, root = self._read_meta()
        waiting, seen = [] if root == NO_PAGE else [root], set()
        while waiting:
            number = waiting.pop()
            if number in seen:
                raise self._damaged("its tree has a loop")
            seen.add(number)
            page, nodes, is_branch = self._read_page(number)
            if is_branch:
                children = [_BRANCH_NODE.unpack_from(page, node) for node in nodes]
                waiting += [low | high << 32 for low, high in reversed(children)]
                continue
            for key, offset, size in self._read_leaf(page, number, nodes):
                self.keys.append(key)
                offsets.append(offset)
                sizes.append(size)
        self.offsets, self.sizes = np.array(offsets, np.int64), np.array(sizes, np.int64)
        if len(self.keys) != entries:
            raise self._damaged(f"it claims {entries} records, its tree holds {len(self.keys)}")
        # With flags, the keys are not in the order of their bytes.
        if not flags and any(a >= b for a, b in itertools.pairwise(self.keys)):
            raise self._damaged("the keys in its tree are not in order")
        if len(np.unique(self.offsets)) != len(self.offsets):
            raise self._damaged("two records have their values in the same place")

    def _damaged(self, reason: str) -> CorruptRecord:
        return CorruptRecord(f"{self.path} is a damaged or truncated LMDB file: {reason}")

    def _read_meta(self) -> tuple[int, int, int]:
        """Flags, number of entries and root page of the main database; sets the page size."""
        first = self._meta_at(0)
        if first is None:
            raise CorruptRecord(
                f"{self.path} is not an LMDB file of version {VERSION} (64 bits, little-endian)"
            )
        size = self.page_size = first[4]  # LMDB keeps it in an unused field of its free list
        if size < 512 or size > MAX_PAGE or size & (size - 1):
            raise self._damaged(f"a page size of {size}")
        second = self._meta_at(size)
        if second is None:
            raise self._damaged("its second meta page")
        # LMDB writes them in turn: transaction n to page n mod 2, which leaves n - 1 on the other.
        # A damaged number would make an older state of the database the latest one.
        transactions = first[-1], second[-1]
        in_turn = transactions[0] % 2 == 0 and abs(transactions[0] - transactions[1]) == 1
        if transactions != (0, 0) and not in_turn:
            raise self._damaged(f"its meta pages have the transaction numbers {transactions}")
        latest = max(first, second, key=lambda meta: meta[-1])
        _, flags, _, _, _, _, entries, root = latest[12:20]
        return flags, entries, root

    def _meta_at(self, offset: int) -> tuple[int, ...] | None:
        try:
            raw = self.file.read(offset + PAGE_HEADER, _META.size, "the meta page")
        except CorruptRecord:
            return None
        meta = _META.unpack(raw)
        return meta if meta[:2] == (MAGIC, VERSION) else None

    def _read_page(self, number: int) -> tuple[bytes, tuple[int, ...], bool]:
        """A page of the tree, where its nodes begin, and whether it is a branch."""
        size = self.page_size
        page = self.file.read_bytes(number * size, size, f"page {number}")
        own_number, _, flags, lower, upper = _PAGE.unpack_from(page)
        if own_number != number or not PAGE_HEADER <= lower <= upper <= size:
            raise self._damaged(f"page {number} has no valid header")
        nodes = struct.unpack_from(f"<{(lower - PAGE_HEADER) // 2}H", page, PAGE_HEADER)
        if any(node < lower or node > size - NODE_HEADER or node & 1 for node in nodes):
            raise self._damaged(f"page {number} has a node outside itself")
        if not flags & (BRANCH | LEAF):
            raise self._damaged(f"page {number} is neither branch nor leaf")
        return page, nodes, bool(flags & BRANCH)

    def _read_leaf(
        self, page: bytes, number: int, nodes: tuple[int, ...]
    ) -> Iterator[tuple[bytes, int, int]]:
        """Yields each record's key, and the offset and size of its value."""
        for node in nodes:
            size, flags, key_size = _LEAF_NODE.unpack_from(page, node)
            if flags & (SUB_DATA | DUP_DATA):
                raise ValueError(
                    f"{self.path} has named databases or several values for a key; expected one "
                    "plain database: copy it with the lmdb library"
                )
            key = node + NODE_HEADER
            value = key + key_size
            if value + (8 if flags & BIG_DATA else size) > self.page_size:
                raise self._damaged(f"page {number} has a record that reaches past its end")
            offset = number * self.page_size + value
            if flags & BIG_DATA:
                (overflow,) = _PAGE_NUMBER.unpack_from(page, value)
                offset = min(overflow, NOWHERE) * self.page_size + PAGE_HEADER
            yield page[key:value], offset, size

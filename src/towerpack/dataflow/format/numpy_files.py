"""NumPy's .npy and .npz files, read and written."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from towerpack.core.files import atomic_file
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format.files import CorruptRecord, Paths, PerProcess, file_list
from towerpack.dataflow.format.records import (
    Format,
    OnError,
    RecordSource,
    Stored,
    decode_record,
    encode_records,
)
from towerpack.dataflow.source.stored import DataFromArrays

ZIP_END = 22  # bytes of the record at the end of a zip file, without the comment after it
ZIP64_COUNT = 0xFFFF  # stands there if the number of members is written elsewhere
RECORD_ARRAYS = {"records", "starts", "ends"}  # what `NumpySerializer` stores


class NumpyColumns(DataFromArrays):
    """The rows of the arrays in a directory, one `.npy` file for each component, as dicts.

    `images.npy` and `labels.npy` give `{'images': ..., 'labels': ...}`. With `names`, datapoints
    are lists of those arrays in that order. The arrays are memory-mapped: they may be larger than
    memory, and workers share the pages. Random access; a batch takes one indexing call per
    component. Pickled objects are refused.
    """

    def __init__(
        self,
        directory: str | Path,
        names: Sequence[str] | None = None,
        shuffle: bool = False,
        *,
        seed: int = 0,
    ):
        self.directory = Path(directory).expanduser()
        chosen = list(names) if names is not None else self._names()
        paths = [self.directory / f"{name}.npy" for name in chosen]
        arrays = [load_array(path, mapped=True) for path in paths]
        if names is None:
            super().__init__(dict(zip(chosen, arrays, strict=True)), shuffle=shuffle, seed=seed)
        else:
            super().__init__(*arrays, shuffle=shuffle, seed=seed)
        self._paths = paths

    def _names(self) -> list[str]:
        names = sorted(path.stem for path in self.directory.glob("*.npy"))
        if not names:
            raise FileNotFoundError(f"{self.directory} has no .npy files")
        return names

    def __getstate__(self) -> dict[str, Any]:
        # A mapped array would be pickled with its content.
        return {key: value for key, value in self.__dict__.items() if key != "arrays"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.arrays = [load_array(path, mapped=True) for path in self._paths]


class NumpyFiles(RecordSource):
    """One datapoint in each file: the array of a `.npy`, the dict of arrays of an `.npz`.

    `paths` is a directory (all its .npy and .npz files, sorted), a pattern or a list. Random
    access; every file once per epoch. Pickled objects are refused.
    """

    def __init__(
        self, paths: Paths, shuffle: bool = False, *, seed: int = 0, on_error: OnError = "raise"
    ):
        super().__init__(shuffle, seed, on_error)
        found = file_list(paths)
        if len(found) == 1 and found[0].is_dir():
            found = sorted(p for p in found[0].iterdir() if p.suffix in (".npy", ".npz"))
            if not found:
                raise FileNotFoundError(f"{paths} has no .npy or .npz files")
        self.paths = found

    def count(self) -> int:
        return len(self.paths)

    def load(self, row: int) -> Any:
        path = self.paths[row]
        return load_array(path) if path.suffix == ".npy" else load_arrays(path)


class PickledArray(CorruptRecord):
    """A file holds pickled Python objects, which are never read."""


def load_array(path: Path, mapped: bool = False) -> np.ndarray:
    """The array of a .npy file; `CorruptRecord` if it is truncated, damaged or holds pickles."""
    if not mapped:
        with open(path, "rb") as file:
            return read_array(file, str(path))
    with _naming(str(path)):
        array = np.lib.format.open_memmap(path, mode="r")
    expected = array.offset + array.nbytes
    if path.stat().st_size != expected:
        raise CorruptRecord(
            f"{path} has {path.stat().st_size} bytes, its header says {expected}: cut or damaged"
        )
    return array


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; `CorruptRecord` if it is damaged or holds pickles."""
    with open(path, "rb") as file, _naming(str(path)), zipfile.ZipFile(file) as archive:
        arrays = {}
        _check_directory(file, archive, str(path))
        for name in archive.namelist():
            with archive.open(name) as member:
                arrays[name.removesuffix(".npy")] = read_array(member, f"{path}, {name}")
        return arrays


def _check_directory(file: IO[bytes], archive: zipfile.ZipFile, path: str) -> None:
    """Compares the number of members: a wrong length in the directory makes `zipfile` skip some."""
    end = file.seek(-ZIP_END - len(archive.comment), os.SEEK_END)
    expected = int.from_bytes(file.read(ZIP_END)[10:12], "little")
    found = len(archive.namelist())
    if expected not in (found, ZIP64_COUNT) or (end and not found):
        raise CorruptRecord(
            f"{path} is damaged: {found} arrays can be read from its {end + ZIP_END} bytes, but "
            f"the directory at its end counts {expected}"
        )


def read_array(file: IO[bytes], name: str) -> np.ndarray:
    """The array of an open .npy file, which must hold nothing else.

    `CorruptRecord`, with `name`, if it is damaged or holds pickles.
    """
    with _naming(name):
        array = np.lib.format.read_array(file, allow_pickle=False)
        # In a zip file this also compares the checksum, since zipfile does so at the member's end.
        if file.read(1):
            raise CorruptRecord(f"{name} holds more bytes than its header says: it is damaged")
    return array


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turns everything that numpy and `zipfile` raise for damaged bytes into CorruptRecord.

    That is more than ValueError: a damaged header is parsed as Python, a damaged size is allocated.
    """
    try:
        yield
    except (CorruptRecord, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        if "allow_pickle" in str(error):  # numpy's message advises to allow it
            raise PickledArray(
                f"{name} holds pickled Python objects, which are never read: store plain arrays"
            ) from None
        raise CorruptRecord(f"{name} cannot be read as NumPy arrays: {error}") from error


class NumpyRecords(RecordSource):
    """The datapoints that `NumpySerializer` stored; random access; checksums are compared."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        self.path = Path(path).expanduser()
        self._arrays = PerProcess(self._load)  # a worker reads the file itself
        self._count = len(self._arrays.get()["starts"])

    def _load(self) -> dict[str, np.ndarray]:
        arrays = load_arrays(self.path)
        if set(arrays) != RECORD_ARRAYS:
            raise CorruptRecord(
                f"{self.path} was not written by NumpySerializer: it has {sorted(arrays)}"
            )
        return arrays

    def count(self) -> int:
        return self._count

    def load(self, row: int) -> Any:
        arrays = self._arrays.get()
        record = arrays["records"][arrays["starts"][row] : arrays["ends"][row]]
        # A copy, since the consumer may write into it and the record is read again.
        return decode_record(bytearray(record), f"{self.path}, record {row}")


class NumpySerializer:
    """A flow's datapoints in one npz file: their records, and where each begins and ends.

    For small data sets, since the file is read into memory. Nothing in it is pickled.
    `load` gives the datapoints back as a flow with random access.
    """

    load = NumpyRecords

    @staticmethod
    def save(df: DataFlow | Iterable[Any], path: str | os.PathLike[str]) -> None:
        """Writes one epoch of the flow; atomic."""
        records = list(encode_records(df, path))
        ends = np.cumsum([0, *map(len, records)], dtype=np.int64)
        content = np.frombuffer(b"".join(records), np.uint8)
        with atomic_file(Path(path)) as file:
            np.savez(file, records=content, starts=ends[:-1], ends=ends[1:])


def _open_npz(path: Path, on_error: OnError) -> Stored:
    arrays = load_arrays(path)
    if set(arrays) == RECORD_ARRAYS:
        return Stored("npz of datapoints", NumpyRecords(path, on_error=on_error))
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) == 1 and () not in lengths:
        return Stored("npz of columns", DataFromArrays(arrays))
    return Stored("npz", NumpyFiles([path]))


NPZ = Format(
    "npz",
    _open_npz,
    is_head=lambda head: head.startswith(b"PK"),
    writers={".npz": NumpySerializer.save},
)
NPY = Format(
    "npy",
    lambda path, on_error: Stored("npy", NumpyFiles([path])),
    is_head=lambda head: head.startswith(b"\x93NUMPY"),
)

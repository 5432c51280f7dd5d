"""Flows stored in npz files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import codec
from towerpack.core.files import atomic_file
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow, as_flow
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.numpy_files import load_arrays
from towerpack.dataflow.format.per_process import PerProcess
from towerpack.dataflow.format.record_source import OnError, RecordSource
from towerpack.dataflow.format.stored_record import decode_record

ALIGNMENT = 64  # the codec's: so that arrays can be used where they lie


class NumpySerializer:
    """A flow's datapoints in one npz file: their records one behind another, and where each begins.

    For small data sets: the file is read into memory. Nothing in it is pickled.
    """

    @staticmethod
    def save(df: DataFlow | Iterable[Any], path: str | os.PathLike[str]) -> None:
        """Writes one pass of the flow; atomic."""
        parts: list[bytes] = []
        starts, ends, position = [], [], 0
        for i, datapoint in enumerate(track(as_flow(df), description=f"writing {path}")):
            try:
                record = codec.encode(datapoint)
            except codec.EncodeError as error:
                error.add_note(f"in datapoint {i}")
                raise
            padding = bytes(-position % ALIGNMENT)
            starts.append(position + len(padding))
            position += len(padding) + len(record)
            ends.append(position)
            parts += [padding, record]
        with atomic_file(Path(path)) as file:
            np.savez(
                file,
                records=np.frombuffer(b"".join(parts), np.uint8),
                starts=np.array(starts, np.int64),
                ends=np.array(ends, np.int64),
            )

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> NumpyRecords:
        """The stored datapoints as a flow with random access."""
        return NumpyRecords(path, shuffle, seed=seed, on_error=on_error)


class NumpyRecords(RecordSource):
    """The datapoints that `NumpySerializer` stored; random access, checksums compared."""

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
        if set(arrays) != {"records", "starts", "ends"}:
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

"""Stored records: the base of the readers, and how a datapoint becomes a record and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from towerpack.core import codec, logger
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format.files import CorruptRecord, Name, name_of
from towerpack.dataflow.source.iterable import as_flow
from towerpack.dataflow.source.stored import ShuffledSource

OnError = Literal["raise", "skip"]
NAMED_SKIPS = 10  # the first skipped records are named in the log, then only every hundredth
SKIPS_PER_LINE = 100
PICKLE_START = b"\x80"  # how the records that tensorpack pickled begin
OWN_STARTS = (codec.MAGIC, PICKLE_START)  # of the second kind, `decode_record` names the reader


class Stored(NamedTuple):
    """What a path holds: the format in words, and its datapoints in the stored order."""

    format: str
    flow: DataFlow


class Format(NamedTuple):
    """How a format is recognized, by a file's first bytes or its ending, and read and written."""

    name: str
    open: Callable[[Path, OnError], Stored]
    is_head: Callable[[bytes], bool] | None = None
    endings: tuple[str, ...] = ()  # for formats that cannot be recognized by their first bytes
    writers: Mapping[str, Callable[[DataFlow, Path], Any]] = {}  # by file ending


class RecordSource(ShuffledSource):
    """Base of the sources over stored records, with random access.

    A damaged record raises an error that names it. With `on_error='skip'` it is left out, logged
    and counted in `skipped`: only that record is lost. After a skip `len()` is unknown and raises
    TypeError. Subclasses implement `count()` and `load(row)`, which raises `CorruptRecord`.
    """

    def __init__(self, shuffle: bool, seed: int, on_error: OnError = "raise"):
        super().__init__(shuffle, seed)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"expected on_error='raise' or 'skip', received {on_error!r}")
        self.on_error = on_error
        self.skipped = 0
        """The number of damaged records that this process has skipped so far."""

    @property
    def drops(self) -> bool | None:
        return None if self.on_error == "skip" else False

    def count(self) -> int:
        """The number of stored records, including the damaged ones."""
        raise NotImplementedError

    def load(self, row: int) -> Any:
        """The datapoint of a record; `CorruptRecord` if it is damaged."""
        raise NotImplementedError

    def num_indices(self) -> int:
        return self.count()

    def __len__(self) -> int:
        if self.skipped:
            raise TypeError(
                f"{self.label()} has skipped {self.skipped} damaged records, so its len() is not "
                "known; `towerpack data verify` lists them all"
            )
        return self.count()

    def stored(self, row: int) -> Any:
        try:
            return self.load(row)
        except CorruptRecord as error:
            if self.on_error == "raise":
                raise
            self._note_skip(error)
            return None

    def _note_skip(self, error: CorruptRecord) -> None:
        self.skipped += 1
        if self.skipped <= NAMED_SKIPS or self.skipped % SKIPS_PER_LINE == 0:
            logger.warning("skipped damaged record number %d: %s", self.skipped, error)


def encode_records(
    ds: DataFlow | Iterable[Any],
    path: str | os.PathLike[str],
    encoder: Callable[[Any], bytes] = codec.encode,
) -> Iterator[bytes]:
    """Encodes each datapoint of a flow's epoch, and shows the progress of writing `path`."""
    for number, datapoint in enumerate(track(as_flow(ds), description=f"writing {path}")):
        try:
            record = encoder(datapoint)
        except ValueError as error:
            error.add_note(f"in datapoint {number}")
            raise
        yield record


def decode_record(record: Any, name: Name = "the record") -> Any:
    """Decodes a record in towerpack's codec; `CorruptRecord` names one that is damaged.

    The arrays are writable if `record` is.
    """
    if bytes(record[: len(PICKLE_START)]) == PICKLE_START:
        raise CorruptRecord(
            f"{name_of(name)} is a pickle, which is never executed; if tensorpack wrote the file, "
            "towerpack.compat.pickles reads and converts it"
        )
    try:
        return codec.decode(record)
    except codec.DecodeError as error:
        raise CorruptRecord(f"{name_of(name)}: {error}") from error


def components(datapoint: Any) -> dict[str, Any]:
    """A datapoint as named components; those of a list are named '0', '1', ..."""
    if isinstance(datapoint, dict):
        return {str(key): value for key, value in datapoint.items()}
    if isinstance(datapoint, list | tuple):
        return {str(i): value for i, value in enumerate(datapoint)}
    return {"0": datapoint}

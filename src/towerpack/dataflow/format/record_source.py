"""What the sources over files of records have in common: order, and what a damaged record means."""

from __future__ import annotations

from typing import Any, Literal

from towerpack.core import logger
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.shuffled_source import ShuffledSource

OnError = Literal["raise", "skip"]
NAMED_SKIPS = 10  # so many skipped records are named in the log; then only every hundredth
SKIPS_PER_LINE = 100


class RecordSource(ShuffledSource):
    """Base of sources over stored records, with random access.

    A damaged record is an error that names it, or, with `on_error='skip'`, is left out, logged and
    counted in `skipped`: only that record is lost. After a skip `len()` is not known any more, and
    raises TypeError. Subclasses implement `count()` and `load(row)`, which raises `CorruptRecord`.
    """

    def __init__(self, shuffle: bool, seed: int, on_error: OnError = "raise"):
        super().__init__(shuffle, seed)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"expected on_error='raise' or 'skip', received {on_error!r}")
        self.on_error = on_error
        self.skipped = 0
        """How many damaged records this process has left out so far."""

    @property
    def drops(self) -> bool | None:  # type: ignore[override]
        return None if self.on_error == "skip" else False

    def count(self) -> int:
        """How many records are stored, the damaged ones included."""
        raise NotImplementedError

    def load(self, row: int) -> Any:
        """The datapoint of a record; `CorruptRecord` if it is damaged."""
        raise NotImplementedError

    def span(self) -> int:
        return self.count()

    def __len__(self) -> int:
        if self.skipped:
            raise TypeError(
                f"{self.label()} has skipped {self.skipped} damaged records, so its len() is not "
                "known; `towerpack data verify` names them all"
            )
        return self.count()

    def read(self, row: int) -> Any:
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

"""CSV files with random access."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.file_at import FileAt
from towerpack.dataflow.format.record_source import OnError, RecordSource

BLOCK = 1 << 22  # bytes looked through at once for the ends of the lines
NEWLINE, QUOTE = 10, 34


class CSVData(RecordSource):
    """The lines of a CSV file as dicts of text, or of what `types` makes of each column.

    `types` maps column names to functions of the text (`int`, `float`, ...); with it, only those
    columns come, in that order. The first line names the columns unless `names` does. Quoted fields
    may contain separators and line ends. Random access: the file is looked through once for the
    ends of its lines, and each line is then read by its offset. Every line once per pass.

    >>> _ = Path("x.csv").write_text("name,age\\nAda,36\\n")
    >>> CSVData("x.csv", types={"age": int})[0]
    {'age': 36}
    """

    def __init__(
        self,
        path: str | Path,
        shuffle: bool = False,
        types: Mapping[str, Callable[[str], Any]] | None = None,
        names: list[str] | None = None,
        *,
        delimiter: str = ",",
        encoding: str = "utf-8-sig",
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        self.file = FileAt(Path(path).expanduser())
        self.delimiter, self.encoding = delimiter, encoding
        self._starts, self._ends = self._lines()
        if names is None:
            if not len(self._starts):
                raise CorruptRecord(f"{self.file.path} is empty; expected a line with names")
            names = self._fields(0)
            self._starts, self._ends = self._starts[1:], self._ends[1:]
        self.names = names
        missing = [name for name in types or () if name not in names]
        if missing:
            raise KeyError(f"{self.file.path} has no column {missing}; it has {names}")
        self.types = dict(types) if types is not None else None

    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of each line that is not empty; one within quotes goes on."""
        size, open_quotes = self.file.size(), 0
        ends = []
        for begin in range(0, size, BLOCK):
            block = np.frombuffer(self.file.read(begin, min(BLOCK, size - begin)), np.uint8)
            newlines = np.flatnonzero(block == NEWLINE)
            quotes = np.flatnonzero(block == QUOTE)
            before = np.searchsorted(quotes, newlines) + open_quotes
            ends.append(newlines[before % 2 == 0] + begin + 1)
            open_quotes += len(quotes)
        stops = np.concatenate([*ends, [size]]).astype(np.int64)
        starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)
        # A line end alone (one or two bytes) is no record.
        filled = stops - starts > 2
        short = np.flatnonzero(~filled & (stops > starts))
        for line in short.tolist():
            text = self.file.read(int(starts[line]), int(stops[line] - starts[line]))
            filled[line] = bool(text.strip())
        return starts[filled], stops[filled]

    def count(self) -> int:
        return len(self._starts)

    def _fields(self, row: int) -> list[str]:
        start, end = int(self._starts[row]), int(self._ends[row])
        try:
            text = self.file.read(start, end - start, f"line {row}").decode(self.encoding)
            (fields,) = csv.reader([text], delimiter=self.delimiter, strict=True)
        except (ValueError, csv.Error) as error:
            raise CorruptRecord(f"{self.file.path}, line at offset {start}: {error}") from error
        return fields

    def load(self, row: int) -> Any:
        fields = self._fields(row)
        name = f"{self.file.path}, record {row} at offset {int(self._starts[row])}"
        if len(fields) != len(self.names):
            raise CorruptRecord(
                f"{name}: expected {len(self.names)} fields, received {len(fields)}"
            )
        values = dict(zip(self.names, fields, strict=True))
        if self.types is None:
            return values
        try:
            return {column: convert(values[column]) for column, convert in self.types.items()}
        except ValueError as error:
            raise CorruptRecord(f"{name}: {error}") from error

"""Text files with random access: CSV and SVMLight (libsvm)."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.format.files import CorruptRecord, FileAt
from towerpack.dataflow.format.records import Format, OnError, RecordSource, Stored
from towerpack.dataflow.source.stored import ShuffledSource

BLOCK = 1 << 22  # bytes searched at once for the ends of the lines
NEWLINE, QUOTE = 10, 34

Convert = Callable[[str], Any]


def float_or_nan(text: str) -> float:
    return float(text) if text else math.nan


KINDS: list[Convert] = [int, float_or_nan]  # from narrow to wide; then text


def _fits(kind: Convert, text: str) -> bool:
    try:
        value = kind(text)
    except ValueError:
        return False
    digits = text.strip().lstrip("+-")
    zero = digits[:1] == "0" and digits[1:2].isdigit()
    return not zero and "_" not in text and (kind is not int or abs(value) < 2**63)


class CSVData(RecordSource):
    """The lines of a CSV file as dicts: numbers where a column has only numbers, text elsewhere.

    A column is `int` or `float` if all of its fields are; an empty field of such a column is NaN
    and makes the column `float`. A number with a leading zero is text, as in a postal code. The
    file is read once to infer these types, unless `types` gives them: a function of the text for
    all columns (`str`), or a dict of column names and functions, which also selects and orders the
    columns.

    The first line names the columns unless `names` does. Quoted fields may contain separators and
    line ends. Random access: the file is searched once for the ends of its lines, and each line is
    then read by its offset. Every line once per epoch.

    >>> _ = Path("x.csv").write_text("name,age,height\\nAda,36,1.65\\nAlan,41,\\n")
    >>> list(CSVData("x.csv"))
    [{'name': 'Ada', 'age': 36, 'height': 1.65}, {'name': 'Alan', 'age': 41, 'height': nan}]
    >>> CSVData("x.csv", types={"age": int})[0]
    {'age': 36}
    """

    def __init__(
        self,
        path: str | Path,
        shuffle: bool = False,
        types: Mapping[str, Convert] | Convert | None = None,
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
        if types is None:
            types = self._inferred()
        elif not isinstance(types, Mapping):
            types = dict.fromkeys(names, types)
        missing = [name for name in types if name not in names]
        if missing:
            raise KeyError(f"{self.file.path} has no column {missing}; it has {names}")
        self.types = dict(types)

    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of each line that is not empty; a line end within quotes does not count."""
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
        # A line end alone (one or two bytes) is not a record.
        filled = stops - starts > 2
        short = np.flatnonzero(~filled & (stops > starts))
        for line in short.tolist():
            text = self.file.read(int(starts[line]), int(stops[line] - starts[line]))
            filled[line] = bool(text.strip())
        return starts[filled], stops[filled]

    def _inferred(self) -> dict[str, Convert]:
        """The narrowest type that fits all fields of each column."""
        kinds = [0] * len(self.names)
        filled = [False] * len(self.names)
        for row in range(self.count()):
            try:
                fields = self._fields(row)
            except CorruptRecord:
                continue  # reported when it is read
            if len(fields) != len(kinds):
                continue
            for column, text in enumerate(fields):
                filled[column] |= bool(text)
                while kinds[column] < len(KINDS) and not _fits(KINDS[kinds[column]], text):
                    kinds[column] += 1
        found = [KINDS[kind] if kind < len(KINDS) else str for kind in kinds]
        return {
            name: kind if has_any else str
            for name, kind, has_any in zip(self.names, found, filled, strict=True)
        }

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
        try:
            return {column: convert(values[column]) for column, convert in self.types.items()}
        except ValueError as error:
            raise CorruptRecord(f"{name}: {error}") from error


class SVMLightData(ShuffledSource):
    """The lines of an SVMLight file as `[features, label]`: a dense float64 vector, a float64.

    Random access; every line once per epoch. The file is held in memory as a sparse matrix.
    """

    def __init__(self, filename: str | Path, shuffle: bool = False, *, seed: int = 0):
        super().__init__(shuffle, seed)
        datasets = require("sklearn.datasets", extra="svmlight")
        self.path = Path(filename).expanduser()
        try:
            self.features, self.labels = datasets.load_svmlight_file(str(self.path))
        except ValueError as error:
            raise CorruptRecord(f"{self.path} is not an SVMLight file: {error}") from error

    def __len__(self) -> int:
        return len(self.labels)

    def stored(self, row: int) -> list[np.ndarray]:
        return [self.features[row].toarray()[0], self.labels[row]]

    def stored_rows(self, rows: np.ndarray) -> list[list[np.ndarray]]:
        block = self.features[rows].toarray()
        return [[x, y] for x, y in zip(block, self.labels[rows], strict=True)]


def _open_csv(path: Path, on_error: OnError) -> Stored:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    return Stored("CSV", CSVData(path, types=str, delimiter=delimiter, on_error=on_error))


CSV = Format("CSV", _open_csv, endings=(".csv", ".tsv"))

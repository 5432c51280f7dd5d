"""SVMLight (libsvm) text files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.shuffled_source import ShuffledSource


class SVMLightData(ShuffledSource):
    """The lines of an SVMLight file as `[features, label]`: a dense float64 vector, a float64.

    Random access; every line once per pass. The file is read into memory, sparse.
    """

    def __init__(self, filename: str | Path, shuffle: bool = False, *, seed: int = 0):
        super().__init__(shuffle, seed)
        datasets = require("sklearn.datasets", extra="svmlight")
        self.path = Path(filename).expanduser()
        try:
            self.features, self.labels = datasets.load_svmlight_file(str(self.path))
        except ValueError as error:
            raise CorruptRecord(f"{self.path} is no SVMLight file: {error}") from error

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row: int) -> list[np.ndarray]:
        return [self.features[row].toarray()[0], self.labels[row]]

    def read_rows(self, rows: np.ndarray) -> list[list[np.ndarray]]:
        block = self.features[rows].toarray()
        return [[x, y] for x, y in zip(block, self.labels[rows], strict=True)]

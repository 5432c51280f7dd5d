"""Image files with labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.dataflow.format.images import read_image
from towerpack.dataflow.format.records import OnError, RecordSource


class LabelledFiles(RecordSource):
    """Datapoints `[file name, label]`: the list that data sets of image files have.

    Random access; every file once per pass.
    """

    def __init__(
        self,
        files: Sequence[tuple[str, int]],
        folder: Path,
        shuffle: bool,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        self.folder = folder
        self.files = [name for name, _ in files]
        self.labels = np.array([label for _, label in files], np.int32)

    def count(self) -> int:
        return len(self.files)

    def load(self, row: int) -> Any:
        return [str(self.folder / self.files[row]), int(self.labels[row])]


class LabelledImages(LabelledFiles):
    """Datapoints `[HxWx3 uint8 BGR, label]`; a truncated image is an error that names the file."""

    def load(self, row: int) -> Any:
        name, label = super().load(row)
        return [read_image(name), label]


def checked_folder(path: Path, what: str) -> Path:
    if not path.is_dir():
        raise FileNotFoundError(f"there is no directory {path}; expected {what}")
    return path

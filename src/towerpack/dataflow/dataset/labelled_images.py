"""Data sets of image files with labels: TinyImageNet and Places365."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.dataflow.dataset.download import check_part
from towerpack.dataflow.format.images import read_image
from towerpack.dataflow.format.records import OnError, RecordSource
from towerpack.dataflow.source.stored import shuffle_train


class LabelledFiles(RecordSource):
    """Datapoints `[file name, label]`: the list that data sets of image files have.

    Random access; every file once per epoch.
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


class UnpackedImages(LabelledImages):
    """Base of the sets that are not downloaded: `dir` is the unpacked archive of `address`.

    Random access; every image once per epoch; only 'train' is shuffled by default.
    """

    address: str

    def __init__(
        self,
        dir: str | Path,
        name: str,
        shuffle: bool | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        check_part(name, ("train", "val"))
        root = checked_folder(Path(dir).expanduser(), f"the content of {self.address}")
        files = self._list(root, name)
        super().__init__(files, root, shuffle_train(name, shuffle), seed, on_error)

    def _list(self, root: Path, name: str) -> list[tuple[str, int]]:
        """The files of a part, relative to `root`, and their labels."""
        raise NotImplementedError


class TinyImageNet(UnpackedImages):
    """TinyImageNet as `[64x64x3 uint8 BGR, label]`; `name` is 'train' or 'val'.

    `dir` is the unpacked `tiny-imagenet-200`; it is not downloaded. Labels are the positions in its
    `wnids.txt`; the 'test' part has none. Random access; every image once per epoch; only 'train'
    is shuffled by default.
    """

    address = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"

    def _list(self, root: Path, name: str) -> list[tuple[str, int]]:
        synsets = (root / "wnids.txt").read_text().split()
        labels = {synset: label for label, synset in enumerate(synsets)}
        if name == "train":
            return [
                (f"train/{synset}/images/{path.name}", label)
                for synset, label in labels.items()
                for path in sorted((root / "train" / synset / "images").glob("*.JPEG"))
            ]
        lines = (root / "val" / "val_annotations.txt").read_text().splitlines()
        fields = [line.split("\t") for line in lines if line.strip()]
        return [(f"val/images/{field[0]}", labels[field[1]]) for field in fields]


class Places365Standard(UnpackedImages):
    """Places365-Standard as `[HxWx3 uint8 BGR, label]`; `name` is 'train' or 'val'.

    `dir` is the unpacked "easy directory structure": `train.txt` and `val.txt`, with lines like
    `train/airfield/00000001.jpg`. It is not downloaded. Labels count the classes of `train.txt` in
    alphabetical order. Random access; every image once per epoch; only 'train' is shuffled by
    default.
    """

    address = "http://data.csail.mit.edu/places/places365/places365standard_easyformat.tar"

    def _list(self, root: Path, name: str) -> list[tuple[str, int]]:
        train = _classes(root, "train")
        self.label_names = sorted({kind for _, kind in train})
        labels = {kind: label for label, kind in enumerate(self.label_names)}
        chosen = train if name == "train" else _classes(root, name)
        unknown = sorted({kind for _, kind in chosen} - set(labels))
        if unknown:
            raise ValueError(f"{root / name}.txt has classes that train.txt lacks: {unknown[:5]}")
        return [(file, labels[kind]) for file, kind in chosen]

    def get_label_names(self) -> list[str]:
        """The names of the classes, by label."""
        return list(self.label_names)


def _classes(root: Path, name: str) -> list[tuple[str, str]]:
    """Each file of a list and its class, the folder that it is in."""
    lines = (root / f"{name}.txt").read_text().split()
    return [(line, Path(line).parent.name) for line in lines]

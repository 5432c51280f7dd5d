"""Data sets of image files with labels: TinyImageNet and Places365."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.dataflow.format.images import read_image
from towerpack.dataflow.format.records import OnError, RecordSource
from towerpack.dataflow.shuffled_source import shuffle_train

TINY_ADDRESS = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"
PLACES_ADDRESS = "http://data.csail.mit.edu/places/places365/places365standard_easyformat.tar"


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


class TinyImageNet(LabelledImages):
    """TinyImageNet as `[64x64x3 uint8 BGR, label]`; `name` is 'train' or 'val'.

    `dir` is the unpacked `tiny-imagenet-200`; it is not downloaded. Labels are the positions in its
    `wnids.txt`. Random access; every image once per epoch; only 'train' is shuffled by default.
    """

    def __init__(
        self,
        dir: str | Path,
        name: str,
        shuffle: bool | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        if name not in ("train", "val"):
            raise ValueError(f"expected 'train' or 'val', received {name!r} ('test' has no labels)")
        root = checked_folder(Path(dir).expanduser(), f"the content of {TINY_ADDRESS}")
        synsets = (root / "wnids.txt").read_text().split()
        labels = {synset: label for label, synset in enumerate(synsets)}
        files = _train_files(root, labels) if name == "train" else _val_files(root, labels)
        super().__init__(files, root / name, shuffle_train(name, shuffle), seed, on_error)


def _train_files(root: Path, labels: dict[str, int]) -> list[tuple[str, int]]:
    files = []
    for synset, label in labels.items():
        for path in sorted((root / "train" / synset / "images").glob("*.JPEG")):
            files.append((f"{synset}/images/{path.name}", label))
    return files


def _val_files(root: Path, labels: dict[str, int]) -> list[tuple[str, int]]:
    lines = (root / "val" / "val_annotations.txt").read_text().splitlines()
    parts = [line.split("\t") for line in lines if line.strip()]
    return [(f"images/{part[0]}", labels[part[1]]) for part in parts]


class Places365Standard(LabelledImages):
    """Places365-Standard as `[HxWx3 uint8 BGR, label]`; `name` is 'train' or 'val'.

    `dir` is the unpacked "easy directory structure": `train.txt` and `val.txt`, with lines like
    `train/airfield/00000001.jpg`. It is not downloaded. Labels count the classes of `train.txt` in
    alphabetical order. Random access; every image once per epoch; only 'train' is shuffled by
    default.
    """

    def __init__(
        self,
        dir: str | Path,
        name: str,
        shuffle: bool | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        if name not in ("train", "val"):
            raise ValueError(f"expected 'train' or 'val', received {name!r}")
        root = checked_folder(Path(dir).expanduser(), f"the content of {PLACES_ADDRESS}")
        train = _classes(root, "train")
        self.label_names = sorted({kind for _, kind in train})
        labels = {kind: label for label, kind in enumerate(self.label_names)}
        chosen = train if name == "train" else _classes(root, name)
        unknown = sorted({kind for _, kind in chosen} - set(labels))
        if unknown:
            raise ValueError(f"{root / name}.txt has classes that train.txt lacks: {unknown[:5]}")
        files = [(file, labels[kind]) for file, kind in chosen]
        super().__init__(files, root, shuffle_train(name, shuffle), seed, on_error)

    def get_label_names(self) -> list[str]:
        """The names of the classes, by label."""
        return list(self.label_names)


def _classes(root: Path, name: str) -> list[tuple[str, str]]:
    """Each file of a list and its class, the folder that it is in."""
    lines = (root / f"{name}.txt").read_text().split()
    return [(line, Path(line).parent.name) for line in lines]

"""TinyImageNet: 200 classes of 64x64 images."""

from __future__ import annotations

from pathlib import Path

from towerpack.dataflow.dataset.labelled_images import (
    LabelledImages,
    checked_folder,
)
from towerpack.dataflow.format.records import OnError
from towerpack.dataflow.shuffled_source import shuffle_train

ADDRESS = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"


class TinyImageNet(LabelledImages):
    """TinyImageNet as `[64x64x3 uint8 BGR, label]`; `name` is 'train' or 'val'.

    `dir` is the unpacked `tiny-imagenet-200`; it is not downloaded. Labels are the positions in its
    `wnids.txt`. Random access; every image once per pass; only 'train' is shuffled by default.
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
        root = checked_folder(Path(dir).expanduser(), f"the content of {ADDRESS}")
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

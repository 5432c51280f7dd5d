"""Places365-Standard: 1.8 million photos of 365 kinds of scenes."""

from __future__ import annotations

from pathlib import Path

from towerpack.dataflow.dataset.labelled_images import (
    LabelledImages,
    checked_folder,
)
from towerpack.dataflow.format.records import OnError
from towerpack.dataflow.shuffled_source import shuffle_train

ADDRESS = "http://data.csail.mit.edu/places/places365/places365standard_easyformat.tar"


class Places365Standard(LabelledImages):
    """Places365-Standard as `[HxWx3 uint8 BGR, label]`; `name` is 'train' or 'val'.

    `dir` is the unpacked "easy directory structure": `train.txt` and `val.txt`, with lines like
    `train/airfield/00000001.jpg`. It is not downloaded. Labels count the classes of `train.txt` in
    alphabetical order. Random access; every image once per pass; only 'train' is shuffled by
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
        root = checked_folder(Path(dir).expanduser(), f"the content of {ADDRESS}")
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

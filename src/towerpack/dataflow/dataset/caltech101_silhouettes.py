"""Caltech 101 Silhouettes: outlines of objects, in black and white."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towerpack.dataflow.dataset.archive import fetched
from towerpack.dataflow.dataset.location import get_dataset_path
from towerpack.dataflow.dataset.matlab import read_mat
from towerpack.dataflow.from_arrays import DataFromArrays
from towerpack.dataflow.shuffled_source import shuffle_train

ADDRESS = "https://people.cs.umass.edu/~marlin/data/caltech101_silhouettes_28_split1.mat"
SIDE = 28


class Caltech101Silhouettes(DataFromArrays):
    """Outlines of objects, `[28x28 float32 of 0 and 1, label 0..100]`; 'train', 'val' or 'test'.

    Random access; every image once per pass; only 'train' is shuffled by default. The .mat file is
    read from `dir`, else from `get_dataset_path('caltech101_data')`, where it is downloaded to.
    """

    def __init__(
        self,
        name: str,
        shuffle: bool | None = None,
        dir: str | Path | None = None,
        *,
        seed: int = 0,
    ):
        if name not in ("train", "val", "test"):
            raise ValueError(f"expected 'train', 'val' or 'test', received {name!r}")
        content = read_mat(_find(dir))
        pixels = content[f"{name}_data"].reshape(-1, SIDE, SIDE)
        # MATLAB stores images column by column.
        images = np.ascontiguousarray(pixels.transpose(0, 2, 1), np.float32)
        labels = content[f"{name}_labels"].reshape(-1).astype(np.int32) - 1
        super().__init__(images, labels, shuffle=shuffle_train(name, shuffle), seed=seed)
        self._names = [str(np.squeeze(cell)) for cell in content["classnames"].reshape(-1)]

    def get_label_names(self) -> list[str]:
        """The names of the 101 classes."""
        return list(self._names)


def _find(dir: str | Path | None) -> Path:
    place = Path(dir).expanduser() if dir is not None else get_dataset_path("caltech101_data")
    path = place / ADDRESS.rpartition("/")[2]
    missing, advice = f"{place} has no {path.name}", f"fetch {ADDRESS} into {place}"
    return fetched(path, [ADDRESS], None, dir is not None, missing, advice)

"""SVHN: photographed house numbers, cropped to single digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towerpack.dataflow.dataset.archive import fetched
from towerpack.dataflow.dataset.location import get_dataset_path
from towerpack.dataflow.dataset.matlab import read_mat
from towerpack.dataflow.from_arrays import DataFromArrays
from towerpack.dataflow.shuffled_source import shuffle_train

# Its server speaks no https; the sums decide.
ADDRESS = "http://ufldl.stanford.edu/housenumbers/"
# As TensorFlow Datasets and torchvision have them.
SHA256 = {
    "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    "extra": "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
}


class SVHNDigit(DataFromArrays):
    """SVHN's cropped digits, `[32x32x3 uint8 RGB, label 0..9]`; 'train', 'test' or 'extra'.

    Random access; every image once per pass; only 'train' is shuffled by default. The .mat files
    are read from `data_dir`, else from `get_dataset_path('svhn_data')`, where they are downloaded
    to; their sums are compared. The digit 0, which the files call 10, is 0.
    """

    def __init__(
        self,
        name: str,
        data_dir: str | Path | None = None,
        shuffle: bool | None = None,
        *,
        seed: int = 0,
    ):
        self._data_dir = data_dir
        images, labels = _load(name, data_dir)
        super().__init__(images, labels, shuffle=shuffle_train(name, shuffle), seed=seed)

    @staticmethod
    def get_per_pixel_mean(
        names: tuple[str, ...] = ("train", "test", "extra"), data_dir: str | Path | None = None
    ) -> np.ndarray:
        """The mean image of these parts, 32x32x3 float32."""
        parts = [_load(name, data_dir)[0] for name in names]
        total = sum(part.sum(axis=0, dtype=np.float64) for part in parts)
        return (total / sum(map(len, parts))).astype(np.float32)


def _load(name: str, data_dir: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
    if name not in SHA256:
        raise ValueError(f"expected 'train', 'test' or 'extra', received {name!r}")
    file = f"{name}_32x32.mat"
    place = Path(data_dir).expanduser() if data_dir is not None else get_dataset_path("svhn_data")
    missing, advice = f"{place} has no {file}", f"fetch {ADDRESS}{file} into {place}"
    given = data_dir is not None
    path = fetched(place / file, [ADDRESS + file], SHA256[name], given, missing, advice)
    content = read_mat(path)
    labels = content["y"].reshape(-1).astype(np.int32)
    labels[labels == 10] = 0
    return np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2)), labels

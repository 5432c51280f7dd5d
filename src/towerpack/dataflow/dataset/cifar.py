"""CIFAR-10 and CIFAR-100: 60,000 small photos in 10 or 100 classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.dataflow.dataset.download import check_part, mean_image, place_of, unpacked
from towerpack.dataflow.format.plain_pickle import read_pickle
from towerpack.dataflow.source.stored import DataFromArrays, shuffle_train

SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class CifarSet:
    """One of the two sets: its files and the names in them. Keras has the same checksums."""

    url: str
    sha256: str
    place: str
    folder: str
    files: dict[str, tuple[str, ...]]
    label: bytes
    names_file: str
    names: bytes


CIFAR10 = CifarSet(
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    "cifar10_data",
    "cifar-10-batches-py",
    {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    b"labels",
    "batches.meta",
    b"label_names",
)
CIFAR100 = CifarSet(
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    "cifar100_data",
    "cifar-100-python",
    {"train": ("train",), "test": ("test",)},
    b"fine_labels",
    "meta",
    b"fine_label_names",
)


class CifarBase(DataFromArrays):
    """Base of the two CIFAR sets: `[32x32x3 uint8 RGB, label]`.

    Random access; every image once per epoch; shuffled by default only for 'train'. The official
    files are pickles, which `read_pickle` reads without executing anything.
    """

    kind: CifarSet

    def __init__(
        self,
        name: str,
        shuffle: bool | None = None,
        dir: str | Path | None = None,
        *,
        seed: int = 0,
    ):
        check_part(name, self.kind.files)
        self.name, self._dir = name, dir
        images, labels = self._load(name)
        super().__init__(images, labels, shuffle=shuffle_train(name, shuffle), seed=seed)

    def _folder(self) -> Path:
        kind = self.kind
        place = place_of(self._dir, kind.place)
        if place.name == kind.folder:  # the folder itself was named
            place = place.parent
        return unpacked(place, kind.folder, [kind.url], kind.sha256, self._dir is not None)

    def _load(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        folder = self._folder()
        images, labels = [], []
        for file in self.kind.files[name]:
            batch = _read(folder / file)
            rows = np.asarray(batch[b"data"], np.uint8).reshape(-1, *SHAPE)
            images.append(rows.transpose(0, 2, 3, 1))
            labels.append(np.asarray(batch[self.kind.label], np.int32))
        if any(len(x) != len(y) for x, y in zip(images, labels, strict=True)):
            raise ValueError(f"{folder}: the numbers of images and of labels differ")
        return np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels)

    def get_per_pixel_mean(self, names: Sequence[str] = ("train", "test")) -> np.ndarray:
        """The mean image of these parts, 32x32x3 float32."""
        for name in names:
            check_part(name, self.kind.files)
        parts = [self.arrays[0] if name == self.name else self._load(name)[0] for name in names]
        return mean_image(parts)

    def get_per_channel_mean(self, names: Sequence[str] = ("train", "test")) -> np.ndarray:
        """The mean red, green and blue of these parts, float32."""
        return self.get_per_pixel_mean(names).mean(axis=(0, 1))

    def get_label_names(self) -> list[str]:
        """What the labels stand for."""
        names = _read(self._folder() / self.kind.names_file)[self.kind.names]
        return [name.decode() if isinstance(name, bytes) else name for name in names]


class Cifar10(CifarBase):
    """CIFAR-10, `[32x32x3 uint8 RGB, label]`; `name` is 'train' (50,000) or 'test' (10,000).

    Read from `dir`, else from `get_dataset_path('cifar10_data')`, where it is downloaded to.
    """

    kind = CIFAR10


class Cifar100(CifarBase):
    """CIFAR-100 with its fine labels, `[32x32x3 uint8 RGB, label]`; 'train' or 'test'.

    Read from `dir`, else from `get_dataset_path('cifar100_data')`, where it is downloaded to.
    """

    kind = CIFAR100


def _read(path: Path) -> dict[bytes, Any]:
    stored = read_pickle(path.read_bytes(), str(path))
    # Python 2 wrote the keys as byte strings; a repacked copy may have text.
    return {key.encode() if isinstance(key, str) else key: value for key, value in stored.items()}

"""Data sets in MATLAB files: SVHN, Caltech 101 Silhouettes and BSDS500."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.dataset.download import check_part, fetched, mean_image, place_of, unpacked
from towerpack.dataflow.format.images import read_image
from towerpack.dataflow.format.records import OnError, RecordSource
from towerpack.dataflow.source.stored import DataFromArrays, shuffle_train

# The server has no https, so the checksums are essential.
SVHN_ADDRESS = "http://ufldl.stanford.edu/housenumbers/"
# The same as in TensorFlow Datasets and torchvision.
SVHN_SHA256 = {
    "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    "extra": "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
}
CALTECH_ADDRESS = "https://people.cs.umass.edu/~marlin/data/caltech101_silhouettes_28_split1.mat"
CALTECH_SIDE = 28
BSDS_ADDRESSES = tuple(
    f"https://{host}.berkeley.edu/Research/Projects/CS/vision/grouping/BSR/BSR_bsds500.tgz"
    for host in ("www2.eecs", "www.eecs")
)


def read_mat(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB file (version 5 to 7.2); a ValueError names a damaged one."""
    io = require("scipy.io", extra="matlab")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # What scipy's parser raises for damaged data.
    damage = (
        *(ValueError, TypeError, OSError, KeyError, IndexError, NotImplementedError),
        *(zlib.error, io.matlab.MatReadError),
    )
    try:
        return io.loadmat(path)
    except damage as error:
        raise ValueError(
            f"{path} is not a whole MATLAB file ({error}); delete it and fetch it again"
        ) from error


def _fetched_mat(
    address: str, dir: str | Path | None, folder: str, sha256: str | None = None
) -> dict[str, Any]:
    """The variables of a MATLAB file in `dir`, or in `folder`, where it is downloaded to."""
    place = place_of(dir, folder)
    path = place / address.rpartition("/")[2]
    missing, advice = f"{place} has no {path.name}", f"fetch {address} into {place}"
    return read_mat(fetched(path, [address], sha256, dir is not None, missing, advice))


class SVHNDigit(DataFromArrays):
    """SVHN's cropped digits, `[32x32x3 uint8 RGB, label 0..9]`; 'train', 'test' or 'extra'.

    Random access; every image once per epoch; only 'train' is shuffled by default. The .mat files
    are read from `data_dir`, else from `get_dataset_path('svhn_data')`, where they are downloaded
    to; their checksums are compared. The digit 0 has the label 0 (10 in the files).
    """

    def __init__(
        self,
        name: str,
        data_dir: str | Path | None = None,
        shuffle: bool | None = None,
        *,
        seed: int = 0,
    ):
        images, labels = _load_svhn(name, data_dir)
        super().__init__(images, labels, shuffle=shuffle_train(name, shuffle), seed=seed)

    @staticmethod
    def get_per_pixel_mean(
        names: tuple[str, ...] = ("train", "test", "extra"), data_dir: str | Path | None = None
    ) -> np.ndarray:
        """The mean image of these parts, 32x32x3 float32."""
        return mean_image([_load_svhn(name, data_dir)[0] for name in names])


def _load_svhn(name: str, data_dir: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
    check_part(name, SVHN_SHA256)
    address = f"{SVHN_ADDRESS}{name}_32x32.mat"
    content = _fetched_mat(address, data_dir, "svhn_data", SVHN_SHA256[name])
    labels = content["y"].reshape(-1).astype(np.int32)
    labels[labels == 10] = 0
    return np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2)), labels


class Caltech101Silhouettes(DataFromArrays):
    """Outlines of objects, `[28x28 float32 of 0 and 1, label 0..100]`; 'train', 'val' or 'test'.

    Random access; every image once per epoch; only 'train' is shuffled by default. The .mat file is
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
        check_part(name, ("train", "val", "test"))
        content = _fetched_mat(CALTECH_ADDRESS, dir, "caltech101_data")
        pixels = content[f"{name}_data"].reshape(-1, CALTECH_SIDE, CALTECH_SIDE)
        # MATLAB stores images column by column.
        images = np.ascontiguousarray(pixels.transpose(0, 2, 1), np.float32)
        labels = content[f"{name}_labels"].reshape(-1).astype(np.int32) - 1
        super().__init__(images, labels, shuffle=shuffle_train(name, shuffle), seed=seed)
        self._names = [str(np.squeeze(cell)) for cell in content["classnames"].reshape(-1)]

    def get_label_names(self) -> list[str]:
        """The names of the 101 classes."""
        return list(self._names)


class BSDS500(RecordSource):
    """Photos with boundaries, `[321x481x3 uint8 BGR, 321x481 float32]`; 'train', 'val' or 'test'.

    Several people drew the boundaries. The second component is the fraction of people who saw a
    boundary at each pixel. Upright images are transposed, so that all have the same shape. Random
    access; every image once per epoch; only 'train' is shuffled by default. Read from `data_dir`,
    else from `get_dataset_path('bsds500_data')`, where the archive is downloaded to.
    """

    def __init__(
        self,
        name: str,
        data_dir: str | Path | None = None,
        shuffle: bool | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle_train(name, shuffle), seed, on_error)
        check_part(name, ("train", "val", "test"))
        place = place_of(data_dir, "bsds500_data")
        folder = unpacked(place, "BSR", BSDS_ADDRESSES, None, data_dir is not None)
        data = folder / "BSDS500" / "data"
        self.images = sorted((data / "images" / name).glob("*.jpg"))
        if not self.images:
            raise FileNotFoundError(f"{data / 'images' / name} has no .jpg files")
        self.truths = [data / "groundTruth" / name / f"{p.stem}.mat" for p in self.images]

    def count(self) -> int:
        return len(self.images)

    def load(self, row: int) -> Any:
        image, truth = read_image(self.images[row]), _boundaries(self.truths[row])
        if image.shape[:2] != truth.shape:
            raise ValueError(
                f"{self.images[row]} is {image.shape[:2]}, its boundaries are {truth.shape}"
            )
        if image.shape[0] > image.shape[1]:
            image, truth = image.transpose(1, 0, 2), truth.T
        return [np.ascontiguousarray(image), np.ascontiguousarray(truth)]


def _boundaries(path: Path) -> np.ndarray:
    people = read_mat(path)["groundTruth"].reshape(-1)
    drawn = [person["Boundaries"][0, 0].astype(np.float32) for person in people]
    return np.asarray(np.mean(drawn, axis=0, dtype=np.float32))

"""What ILSVRC12's images are: lists, labels and names, from Caffe's auxiliary files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.dataset.archive import download_archive_into
from towerpack.dataflow.dataset.location import get_dataset_path
from towerpack.dataflow.format.proto import blob_class

# The authors' own server speaks no https: a mirror comes first.
ADDRESSES = (
    "https://download.openmmlab.com/mmclassification/datasets/imagenet/meta/caffe_ilsvrc12.tar.gz",
    "http://dl.caffe.berkeleyvision.org/caffe_ilsvrc12.tar.gz",
)
SYNSET_FOLDER = re.compile(r"n\d{8}")
PARTS = ("train", "val", "test")


class ILSVRCMeta:
    """Image lists, class names and the mean image of ILSVRC12.

    Read from `dir`, else from `get_dataset_path('ilsvrc_metadata')`, where Caffe's small archive of
    them is downloaded to.
    """

    def __init__(self, dir: str | Path | None = None):
        given = dir is not None
        self.dir = Path(dir).expanduser() if dir else get_dataset_path("ilsvrc_metadata")
        if not (self.dir / "synsets.txt").is_file():
            download_archive_into(self.dir, ADDRESSES, given, needed="synsets.txt")

    def get_synset_words_1000(self) -> dict[int, str]:
        """{label: 'n01440764 tench, Tinca tinca'}."""
        return dict(enumerate(self._lines("synset_words.txt")))

    def get_synset_1000(self) -> dict[int, str]:
        """{label: 'n01440764'}."""
        return dict(enumerate(self._lines("synsets.txt")))

    def get_image_list(self, name: str, dir_structure: str = "original") -> list[tuple[str, int]]:
        """`[(file name, label), ...]` of 'train', 'val' or 'test', relative to that part's folder.

        `dir_structure` is about 'val': 'original' has all images in one folder, 'train' has a
        folder for each class, as the training part has.
        """
        if name not in PARTS:
            raise ValueError(f"expected one of {PARTS}, received {name!r}")
        if dir_structure not in ("original", "train"):
            raise ValueError(
                f"expected dir_structure 'original' or 'train', received {dir_structure!r}"
            )
        synsets = self.get_synset_1000()
        images = []
        for line in self._lines(f"{name}.txt"):
            file, _, label = line.rpartition(" ")
            if not file or not label.isdigit():
                raise ValueError(f"{self.dir / name}.txt: expected 'file label', received {line!r}")
            if dir_structure == "train" and name == "val":
                file = f"{synsets[int(label)]}/{file}"
            images.append((file, int(label)))
        return images

    def get_per_pixel_mean(self, size: tuple[int, int] | None = None) -> np.ndarray:
        """Caffe's mean image, HxWx3 BGR float32; 256x256, or resized to `size` (height, width)."""
        blob = blob_class().FromString((self.dir / "imagenet_mean.binaryproto").read_bytes())
        mean = np.array(blob.data, np.float32).reshape(3, blob.height, blob.width)
        mean = np.ascontiguousarray(mean.transpose(1, 2, 0))
        if size is None:
            return mean
        cv2 = require("cv2", extra="image")
        return cv2.resize(mean, (size[1], size[0]))

    @staticmethod
    def guess_dir_structure(dir: str | Path) -> str:
        """'train' if a folder has one for each class in it, else 'original'."""
        for entry in Path(dir).iterdir():
            if entry.is_dir() and SYNSET_FOLDER.fullmatch(entry.name):
                return "train"
        return "original"

    def _lines(self, name: str) -> list[str]:
        path = self.dir / name
        if not path.is_file():
            raise FileNotFoundError(f"{self.dir} has no {name}; unpack {ADDRESSES[0]} into it")
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]

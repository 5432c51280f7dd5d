"""ILSVRC12, the ImageNet of a thousand classes, and Caffe's lists of its images and labels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.dataset.download import check_part, download_archive_into, place_of
from towerpack.dataflow.dataset.labelled_images import LabelledFiles, LabelledImages, checked_folder
from towerpack.dataflow.format.proto import blob_class
from towerpack.dataflow.format.records import OnError
from towerpack.dataflow.source.stored import shuffle_train

# The authors' own server has no https, so a mirror comes first.
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
        self.dir = place_of(dir, "ilsvrc_metadata")
        if not (self.dir / "synsets.txt").is_file():
            download_archive_into(self.dir, ADDRESSES, dir is not None, needed="synsets.txt")

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
        check_part(name, PARTS)
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


class ILSVRC12Files(LabelledFiles):
    """ILSVRC12 as `[file name, label]`; `name` is 'train', 'val' or 'test'.

    `dir` has a folder for each part. `dir_structure`, of 'val', is 'original' (all images in one
    folder) or 'train' (a folder for each class); by default it is detected. The lists come from
    `ILSVRCMeta(meta_dir)`. Random access; every file once per epoch; only 'train' is shuffled by
    default.
    """

    def __init__(
        self,
        dir: str | Path,
        name: str,
        meta_dir: str | Path | None = None,
        shuffle: bool | None = None,
        dir_structure: str | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        check_part(name, PARTS)
        folder = checked_folder(Path(dir).expanduser() / name, f"ILSVRC12's {name} images")
        if dir_structure is None:
            dir_structure = "original"
            if name == "val":
                dir_structure = ILSVRCMeta.guess_dir_structure(folder)
        files = ILSVRCMeta(meta_dir).get_image_list(name, dir_structure)
        super().__init__(files, folder, shuffle_train(name, shuffle), seed, on_error)
        if files and not (folder / files[0][0]).is_file():
            raise FileNotFoundError(
                f"there is no {folder / files[0][0]}, the first of the list; expected the images "
                f"with dir_structure={dir_structure!r}"
            )


class ILSVRC12(LabelledImages, ILSVRC12Files):
    """ILSVRC12 as `[HxWx3 uint8 BGR, label]`; the arguments are those of `ILSVRC12Files`.

    A truncated image is an error that names the file, or with `on_error='skip'` is left out.
    """

"""ILSVRC12, the ImageNet of a thousand classes."""

from __future__ import annotations

from pathlib import Path

from towerpack.dataflow.dataset.ilsvrc_meta import PARTS, ILSVRCMeta
from towerpack.dataflow.dataset.labelled_images import (
    LabelledFiles,
    LabelledImages,
    checked_folder,
)
from towerpack.dataflow.format.records import OnError
from towerpack.dataflow.shuffled_source import shuffle_train


class ILSVRC12Files(LabelledFiles):
    """ILSVRC12 as `[file name, label]`; `name` is 'train', 'val' or 'test'.

    `dir` has a folder for each part. `dir_structure`, of 'val', is 'original' (all images in one
    folder) or 'train' (a folder for each class); by default it is looked up. The lists come from
    `ILSVRCMeta(meta_dir)`. Random access; every file once per pass; only 'train' is shuffled by
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
        if name not in PARTS:
            raise ValueError(f"expected one of {PARTS}, received {name!r}")
        folder = checked_folder(Path(dir).expanduser() / name, f"ILSVRC12's {name} images")
        if dir_structure is None:
            known = name != "val"
            dir_structure = "original" if known else ILSVRCMeta.guess_dir_structure(folder)
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

"""Image files as a source."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.image import decode_image
from towerpack.dataflow.format.record_source import OnError, RecordSource

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class ImageFromFile(RecordSource):
    """The images of a list of files as `[image]`: HxWx3 RGB, or HxWx1 with `channel=1`; uint8.

    `resize` is (height, width), or one number for both. Random access; every file once per pass. A
    truncated file is an error that names it.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        channel: int = 3,
        resize: int | tuple[int, int] | None = None,
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        if isinstance(files, str | Path) or not len(files):
            raise ValueError(f"expected a list of files that is not empty, received {files!r}")
        if channel not in (1, 3):
            raise ValueError(f"expected channel 1 or 3, received {channel!r}")
        self.files, self.channel = list(files), int(channel)
        self.resize = (resize, resize) if isinstance(resize, int) else resize

    def count(self) -> int:
        return len(self.files)

    def load(self, row: int) -> Any:
        image = read_image(self.files[row], self.channel, rgb=True)
        if self.resize is not None:
            cv2 = require("cv2", extra="image")
            height, width = self.resize
            image = cv2.resize(image, (width, height))
            image = image.reshape(height, width, self.channel)
        return [image]


class ImageFolder(ImageFromFile):
    """Images in one folder for each class, as `[image, label]`; the image as of `ImageFromFile`.

    Labels are 0, 1, ... in the order of the folders' names, which are in `classes`. A second folder
    gets the labels of the first by `classes=first.classes`. Folders within a class count as part of
    it. Files that are no images by their extension are left out and logged.

    `part` takes a share of each class, chosen by the files' names: `part=(0, 0.9)` and
    `part=(0.9, 1)` have no file in common, and together have all.

    An unreadable file is an error that names it; with `on_error='skip'` it is left out, logged and
    counted. Random access; every file once per pass.

    `ImageFolder("pets", resize=224, part=(0, 0.9), shuffle=True)` is nine tenths of it to train on.
    """

    def __init__(
        self,
        folder: str | Path,
        channel: int = 3,
        resize: int | tuple[int, int] | None = None,
        shuffle: bool = False,
        *,
        part: tuple[float, float] = (0.0, 1.0),
        classes: Sequence[str] | None = None,
        extensions: Sequence[str] = EXTENSIONS,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        root = Path(folder).expanduser()
        begin, end = part
        if not 0 <= begin < end <= 1:
            raise ValueError(f"expected a part (begin, end) of (0, 1), received {part}")
        self.classes = _classes(root) if classes is None else list(classes)
        if unknown := sorted(set(_classes(root)) - set(self.classes)):
            raise ValueError(f"{root} has folders of other classes than given: {unknown}")
        files: list[Path] = []
        labels: list[int] = []
        for label, name in enumerate(self.classes):
            found = _images(root / name, extensions)
            share = found[round(begin * len(found)) : round(end * len(found))]
            if found and not share:
                logger.warning("%s: none of %d files is in part %s", root / name, len(found), part)
            files += sorted(share)
            labels += [label] * len(share)
        if not files:
            raise ValueError(f"{root}: expected images in its folders, found none in part {part}")
        super().__init__(files, channel, resize, shuffle, seed=seed, on_error=on_error)
        self.labels = np.array(labels, np.int32)

    def load(self, row: int) -> Any:
        return [*super().load(row), int(self.labels[row])]


def _classes(root: Path) -> list[str]:
    if not root.is_dir():
        raise FileNotFoundError(f"there is no directory {root}; expected one folder for each class")
    names = sorted(x.name for x in root.iterdir() if x.is_dir() and not x.name.startswith("."))
    if not names:
        raise ValueError(f"{root}: expected one folder for each class, found none")
    return names


def _images(folder: Path, extensions: Sequence[str]) -> list[Path]:
    """The images of a class in an order that says nothing about them."""
    wanted = {extension.lower() for extension in extensions}
    visible = [x for x in folder.rglob("*") if x.is_file() and not x.name.startswith(".")]
    images = [x for x in visible if x.suffix.lower() in wanted]
    if len(images) < len(visible):
        others = sorted({x.suffix for x in visible} - {x.suffix for x in images})
        left = len(visible) - len(images)
        logger.warning("%s: left out %d files with the extensions %s", folder, left, others)
    if not images:
        logger.warning("%s has no images", folder)
    return sorted(images, key=lambda x: zlib.crc32(x.relative_to(folder).as_posix().encode()))


def read_image(path: str | Path, channel: int = 3, rgb: bool = False) -> Any:
    """The image of a file, HxWx3 (BGR unless `rgb`) or HxWx1; `CorruptRecord` names the file."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CorruptRecord(f"{path} cannot be read: {error}") from error
    return decode_image(data, str(path), channel, rgb)

"""Images: decoded from bytes, encoded, and read from files as a source."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.dataflow.format.files import CorruptRecord
from towerpack.dataflow.format.records import OnError, RecordSource

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
JPEG_START = b"\xff\xd8\xff"
ORIENTATION_TAG = 0x0112
EXIF_SEARCH = 1 << 16  # the EXIF segment is one of the first, and at most 64 KB long


class ImageFromFile(RecordSource):
    """The images of a list of files as `[image]`: HxWx3 RGB, or HxWx1 with `channel=1`; uint8.

    `resize` is (height, width), or one number for both. Random access; every file once per epoch. A
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
    """Images in one folder for each class, as `[image, label]`.

    The images are those of `ImageFromFile`.
    Labels are 0, 1, ... in the order of the folders' names, which are in `classes`. To give a
    second folder the same labels, pass `classes=first.classes`. Subfolders of a class belong to it.
    Files without the extension of an image are left out and logged.

    `part` selects a share of each class by the files' names: `part=(0, 0.9)` and `part=(0.9, 1)`
    have no file in common, and together they have all files.

    An unreadable file is an error that names it; with `on_error='skip'` it is left out, logged and
    counted. Random access; every file once per epoch.

    `ImageFolder("pets", resize=224, part=(0, 0.9), shuffle=True)` holds nine tenths of each class.
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
    """The images of a class in an order that is independent of their content and date."""
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


def decode_image(data: Any, name: str = "the image", channel: int = 3, rgb: bool = False) -> Any:
    """Decodes the bytes of a JPEG, PNG, ... file to uint8: HxWx3 (BGR, or RGB), or HxWx1.

    A truncated or damaged image raises a `CorruptRecord` with its `name`, and never gives a
    half-gray picture. libjpeg-turbo decodes JPEGs in its strict mode, OpenCV all other formats. An
    EXIF orientation is applied.
    """
    if channel not in (1, 3):
        raise ValueError(f"expected channel 1 or 3, received {channel!r}")
    data = bytes(data)
    image = _decode_jpeg(data, name, channel, rgb) if data.startswith(JPEG_START) else None
    if image is None:
        image = _decode_by_opencv(data, name, channel, rgb)
    return image[:, :, np.newaxis] if image.ndim == 2 else image


def encode_image(image: np.ndarray, format: str, rgb: bool = True, quality: int = 95) -> bytes:
    """Encodes a uint8 image as a file's bytes ('png', 'jpeg', ...)."""
    cv2 = require("cv2", extra="image")
    if rgb and image.shape[2:] == (3,):
        image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if format in ("jpg", "jpeg") else []
    done, encoded = cv2.imencode(f".{format}", image, options)
    if not done:
        raise ValueError(f"OpenCV cannot encode an image of shape {image.shape} as {format}")
    return encoded.tobytes()


def _decode_jpeg(data: bytes, name: str, channel: int, rgb: bool) -> np.ndarray | None:
    """None for the color spaces that libjpeg-turbo does not convert (CMYK)."""
    simplejpeg = require("simplejpeg", extra="image")
    try:
        _, _, space, _ = simplejpeg.decode_jpeg_header(data)
        if space in ("CMYK", "YCCK"):
            return None
        wanted = "GRAY" if channel == 1 else "RGB" if rgb else "BGR"
        image = simplejpeg.decode_jpeg(data, wanted)
    except ValueError as error:
        raise CorruptRecord(f"{name} is a damaged or truncated JPEG: {error}") from error
    return turned(image, exif_orientation(data))


def _decode_by_opencv(data: bytes, name: str, channel: int, rgb: bool) -> np.ndarray:
    cv2 = require("cv2", extra="image")
    mode = cv2.IMREAD_GRAYSCALE if channel == 1 else cv2.IMREAD_COLOR
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), mode) if data else None
    except cv2.error as error:
        raise CorruptRecord(f"{name} cannot be decoded: {error}") from error
    if image is None:
        raise CorruptRecord(
            f"{name} ({len(data)} bytes, beginning with {data[:8].hex(' ')}) is not an image, or "
            "is truncated"
        )
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB) if rgb and channel == 3 else image


def exif_orientation(data: bytes) -> int:
    """The EXIF orientation of a JPEG, 1 to 8; 1 (upright) if it has none."""
    start = data.find(b"Exif\0\0", 0, EXIF_SEARCH)
    if start < 0:
        return 1
    tiff = data[start + 6 : start + 6 + EXIF_SEARCH]
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    try:
        if order is None:
            return 1
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (entries,) = struct.unpack_from(f"{order}H", tiff, directory)
        for number in range(entries):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, directory + 2 + 12 * number)
            if tag == ORIENTATION_TAG:
                return value if 1 <= value <= 8 else 1
    except struct.error:  # a damaged EXIF block does not affect the image
        return 1
    return 1


def turned(image: np.ndarray, orientation: int) -> np.ndarray:
    """The image turned upright, given its EXIF orientation."""
    if orientation == 1:
        return image
    if orientation in (5, 6, 7, 8):
        image = image.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)

"""Contact sheets: many pictures in one, each in a tile with its label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import tree
from towerpack.core.files import atomic_file
from towerpack.core.optional import require
from towerpack.dataflow.format.images import JPEG_START, decode_image, encode_image

PNG_START = b"\x89PNG"
TILE = 160  # pixels: a picture is recognizable, and thirty of them fit on a screen
GAP, LABEL = 6, 16
WRITABLE = (".png", ".jpg")
PAPER, INK = (255, 255, 255), (40, 40, 40)

Labelled = tuple[str, np.ndarray]


def contact_sheet(pictures: Sequence[Labelled], columns: int | None = None) -> np.ndarray:
    """One RGB picture of many, each scaled to fit a tile, with its label below it."""
    cv2 = require("cv2", extra="image")
    columns = columns or math.ceil(math.sqrt(len(pictures) * 1.5))
    rows = math.ceil(len(pictures) / columns)
    height, width = TILE + LABEL + GAP, TILE + GAP
    sheet = np.full((rows * height + GAP, columns * width + GAP, 3), PAPER, np.uint8)
    for i, (label, picture) in enumerate(pictures):
        y, x = GAP + i // columns * height, GAP + i % columns * width
        scale = TILE / max(picture.shape[:2])
        # Area avoids artifacts in reduced pictures; nearest keeps enlarged pixels visible.
        interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
        size = [max(round(length * scale), 1) for length in picture.shape[1::-1]]
        small = cv2.resize(displayable(picture), size, interpolation=interpolation)
        top, left = y + (TILE - size[1]) // 2, x + (TILE - size[0]) // 2
        sheet[top : top + size[1], left : left + size[0]] = small
        place = (x, y + TILE + LABEL - 5)
        cv2.putText(sheet, label, place, cv2.FONT_HERSHEY_SIMPLEX, 0.38, INK, 1, cv2.LINE_AA)
    return sheet


def displayable(img: np.ndarray) -> np.ndarray:
    """Any image as RGB of uint8; values that are not pixels are stretched to the whole range."""
    if img.dtype != np.uint8:
        img = np.nan_to_num(img.astype(np.float64))
        low, high = float(img.min()), float(img.max())
        if low < 0 or high > 255.5 or high - low < 16:  # normalized
            img = (img - low) * (255 / max(high - low, 1e-9))
        img = np.clip(np.rint(img), 0, 255).astype(np.uint8)
    img = img if img.ndim == 3 else img[:, :, None]
    return np.repeat(img[:, :, :1], 3, axis=2) if img.shape[2] < 3 else img[:, :, :3]


def draw_samples(datapoints: Sequence[Any], target: Path) -> int:
    """Writes the first image of each datapoint to one picture; returns the number of images.

    Nothing is written if there is no image.
    """
    pictures = []
    for index, datapoint in enumerate(datapoints):
        images = (_image(leaf) for leaf in tree.leaves(datapoint))
        image = next((image for image in images if image is not None), None)
        if image is not None:
            pictures.append((str(index), image))
    if pictures:
        write_picture(target, contact_sheet(pictures))
    return len(pictures)


def _image(leaf: Any) -> np.ndarray | None:
    """The leaf as an image, if it is one: an encoded file, or an array of that shape."""
    if isinstance(leaf, bytes) and leaf.startswith((JPEG_START, PNG_START)):
        return decode_image(leaf, rgb=True)
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "uif" or not leaf.size:
        return None
    is_gray = leaf.ndim == 2 and min(leaf.shape) > 1
    return leaf if is_gray or (leaf.ndim == 3 and leaf.shape[2] in (1, 3)) else None


def write_picture(path: Path, img: np.ndarray) -> None:
    encoded = (
        encode_image(img, path.suffix[1:].lower()) if path.suffix.lower() in WRITABLE else None
    )
    if encoded is None:
        raise ValueError(f"expected an output ending in {' or '.join(WRITABLE)}, received {path}")
    with atomic_file(path) as file:
        file.write(encoded)

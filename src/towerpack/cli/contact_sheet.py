"""Contact sheets: many pictures in one, each in a tile with its label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from towerpack.core.files import atomic_file
from towerpack.core.optional import require

TILE = 160  # pixels: a picture is recognizable, and thirty of them fit on a screen
GAP, LABEL = 6, 16
WRITABLE = (".png", ".jpg")
PAPER, INK = (255, 255, 255), (40, 40, 40)

Labelled = tuple[str, np.ndarray]


def contact_sheet(pictures: Sequence[Labelled], columns: int | None = None) -> np.ndarray:
    """One RGB picture of many, each scaled to fit a tile, with its label below it."""
    columns = columns or math.ceil(math.sqrt(len(pictures) * 1.5))
    rows = math.ceil(len(pictures) / columns)
    step = (TILE + LABEL + GAP, TILE + GAP)
    sheet = np.empty((rows * step[0] + GAP, columns * step[1] + GAP, 3), np.uint8)
    sheet[:] = PAPER
    for i, (label, picture) in enumerate(pictures):
        y, x = GAP + i // columns * step[0], GAP + i % columns * step[1]
        _put(sheet, y, x, label, displayable(picture))
    return sheet


def _put(sheet: np.ndarray, y: int, x: int, label: str, picture: np.ndarray) -> None:
    cv2 = require("cv2", extra="image")
    height, width = picture.shape[:2]
    scale = TILE / max(height, width)
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    # Area avoids artifacts in reduced pictures; nearest keeps the pixels of enlarged ones visible.
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    small = cv2.resize(picture, size, interpolation=interpolation)
    top, left = y + (TILE - size[1]) // 2, x + (TILE - size[0]) // 2
    sheet[top : top + size[1], left : left + size[0]] = small
    font, place = cv2.FONT_HERSHEY_SIMPLEX, (x, y + TILE + LABEL - 5)
    cv2.putText(sheet, label, place, font, 0.38, INK, 1, cv2.LINE_AA)


def displayable(img: np.ndarray) -> np.ndarray:
    """Any image as RGB of uint8; values that are not pixels are stretched to the whole range."""
    if img.dtype != np.uint8:
        img = np.nan_to_num(img.astype(np.float64))
        low, high = float(img.min()), float(img.max())
        normalized = low < 0 or high > 255.5 or high - low < 16
        if normalized:
            img = (img - low) * (255 / max(high - low, 1e-9))
        img = np.clip(np.rint(img), 0, 255).astype(np.uint8)
    img = img if img.ndim == 3 else img[:, :, None]
    return np.repeat(img[:, :, :1], 3, axis=2) if img.shape[2] < 3 else img[:, :, :3]


def read_picture(path: Path) -> np.ndarray:
    """The picture as RGB."""
    cv2 = require("cv2", extra="image")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # From bytes: for a file that it cannot read, OpenCV would print a warning.
    img = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if img is None:
        raise ValueError(f"{path} is not an image that OpenCV can read")
    return cv2.cvtColor(img, cv2.COLOR_BGR2RGB)


def write_picture(path: Path, img: np.ndarray) -> None:
    cv2 = require("cv2", extra="image")
    if path.suffix.lower() not in WRITABLE:
        raise ValueError(f"expected an output ending in {' or '.join(WRITABLE)}, received {path}")
    _, encoded = cv2.imencode(path.suffix, cv2.cvtColor(img, cv2.COLOR_RGB2BGR))
    with atomic_file(path) as file:
        file.write(encoded.tobytes())

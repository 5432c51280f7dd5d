"""What a file of datapoints holds, in words and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.cli.augment import write_picture
from towerpack.core import tree
from towerpack.core.optional import require
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow, Pass
from towerpack.dataflow.format.files import CorruptRecord
from towerpack.dataflow.format.images import JPEG_START, decode_image
from towerpack.dataflow.format.stored import Stored

TILE = 96  # pixels: the side of one sample in the picture
COLUMNS = 8
PNG_START = b"\x89PNG"
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def first_datapoints(flow: DataFlow, count: int) -> list[Any]:
    with flow.iterate() as iterator:
        return list(islice(iterator, count))


def describe(path: Path, stored: Stored, datapoints: Sequence[Any]) -> Iterator[str]:
    """A line each: format and size, number of datapoints, each component."""
    yield f"{path}: {stored.format}, {in_units(stored_bytes(path))}"
    try:
        yield f"datapoints: {len(stored.flow)}"
    except TypeError:
        yield "datapoints: unknown without reading all of them"
    if not datapoints:
        return
    flat = [tree.leaves_with_paths(datapoint) for datapoint in datapoints]
    yield f"components of the first {len(datapoints)}:"
    for place in {path: None for leaves in flat for path, _ in leaves}:
        values = [value for leaves in flat for path, value in leaves if path == place]
        yield f"  {place or '(the datapoint)'}: {describe_values(values)}"


def describe_values(values: Sequence[Any]) -> str:
    """Type, shapes and range of one component over several datapoints."""
    kinds = sorted({kind_of(value) for value in values})
    text = " or ".join(kinds[:3]) + (" or ..." if len(kinds) > 3 else "")
    numbers = [np.asarray(v) for v in values if not isinstance(v, str | bytes)]
    numbers = [array for array in numbers if array.size and array.dtype.kind in "biuf"]
    if numbers:
        low, high = min(x.min() for x in numbers), max(x.max() for x in numbers)
        return f"{text}, from {low:g} to {high:g}"
    if isinstance(values[0], str | bytes):
        lengths = [len(value) for value in values if isinstance(value, str | bytes)]
        return f"{text} of length {min(lengths)} to {max(lengths)}, first {values[0][:40]!r}"
    return text


def kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {'x'.join(map(str, value.shape))}"
    return str(value.dtype) if isinstance(value, np.generic) else type(value).__name__


def stored_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def in_units(count: float) -> str:
    """
    >>> in_units(2_500_000)
    '2.4 MiB'
    """
    for unit in UNITS[:-1]:
        if count < 1024:
            return f"{count:.4g} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"


def draw_samples(datapoints: Sequence[Any], target: Path) -> str:
    """Writes the first image of each datapoint as one tile; says what it did."""
    tiles = [tile for tile in map(_tile, datapoints) if tile is not None]
    if not tiles:
        return "there is no image among the components, so there is no picture"
    rows = -(-len(tiles) // COLUMNS)
    columns = min(COLUMNS, len(tiles))
    sheet = np.full((rows * TILE, columns * TILE, 3), 255, np.uint8)
    for i, tile in enumerate(tiles):
        row, column = divmod(i, COLUMNS)
        top, left = row * TILE + (TILE - tile.shape[0]) // 2, column * TILE
        left += (TILE - tile.shape[1]) // 2
        sheet[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    write_picture(target, sheet)
    return f"{len(tiles)} images -> {target}"


def _tile(datapoint: Any) -> np.ndarray | None:
    """The first leaf that looks like an image, as RGB in a square of `TILE` pixels."""
    cv2 = require("cv2", extra="image")
    for leaf in tree.leaves(datapoint):
        image = _image(leaf)
        if image is not None:
            scale = (TILE - 4) / max(image.shape[:2])
            size = [max(1, round(side * scale)) for side in image.shape[1::-1]]
            kind = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
            return cv2.resize(image, size, interpolation=kind)
    return None


def _image(leaf: Any) -> np.ndarray | None:
    if isinstance(leaf, bytes) and leaf.startswith((JPEG_START, PNG_START)):
        return decode_image(leaf, rgb=True)
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "uif" or not leaf.size:
        return None
    if leaf.ndim == 3 and leaf.shape[2] in (1, 3):
        image = leaf
    elif leaf.ndim == 2 and min(leaf.shape) > 1:
        image = leaf[:, :, np.newaxis]
    else:
        return None
    if image.dtype != np.uint8:
        values = np.nan_to_num(image.astype(np.float64))
        low, high = values.min(), values.max()
        image = ((values - low) * (255 / (high - low or 1))).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))


def damaged_records(flow: DataFlow) -> Iterator[str | None]:
    """For each record None if it is sound, else what is wrong with it."""
    if not flow.random_access:
        try:
            for _ in track(flow, description="verifying"):
                yield None
        except CorruptRecord as error:  # what comes behind cannot be reached
            yield str(error)
        return
    pass_ = Pass()
    for index in track(range(flow.span()), description="verifying"):
        try:
            flow.get(index, pass_)
            yield None
        except CorruptRecord as error:
            yield str(error)

"""What `towerpack predict` reads: image files, or the arrays of an `.npz`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from towerpack.checkpoint.sources import read_npz
from towerpack.dataflow.format import ImageFromFile

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
InputSpecs = dict[str, tuple[str, list[int | None]]]  # key: dtype and shape


@dataclass
class Inputs:
    """Rows to predict: what each is called, and how to read some as arrays by input."""

    names: list[str]
    read: Callable[[range], dict[str, np.ndarray]]

    def __len__(self) -> int:
        return len(self.names)


def open_inputs(path: Path, specs: InputSpecs, scale: float, bgr: bool) -> Inputs:
    """The rows of an `.npz`, or the image files in a directory (or one file), read when asked for.

    A model that takes text gets the bytes of the files; one that takes uint8 gets pixels; any other
    gets pixels times `scale`.
    """
    if not path.exists():
        raise typer.BadParameter(f"there is no {path}")
    if path.suffix == ".npz":
        return _from_npz(path, specs)
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if not files:
        raise typer.BadParameter(f"{path} holds no images ({', '.join(IMAGE_SUFFIXES)})")
    if len(specs) != 1:
        raise typer.BadParameter(
            f"images can be given to a model with one input; this has {sorted(specs)}: use an .npz"
        )
    ((key, (dtype, shape)),) = specs.items()
    root = path if path.is_dir() else path.parent
    names = [str(file.relative_to(root)) for file in files]
    if dtype == "string" and len(shape) == 1:
        return Inputs(names, lambda places: {key: _contents(files[i] for i in places)})
    read = _image_reader(files, shape, bgr)
    if dtype == "uint8":
        return Inputs(names, lambda places: {key: read(places)})
    return Inputs(names, lambda places: {key: (read(places) * scale).astype(dtype)})


def _contents(files: Any) -> np.ndarray:
    return np.array([file.read_bytes() for file in files], object)


def _from_npz(path: Path, specs: InputSpecs) -> Inputs:
    arrays = read_npz(path)
    missing = sorted(set(specs) - set(arrays))
    if missing:
        raise typer.BadParameter(f"{path} lacks the inputs {missing}; it has {sorted(arrays)}")
    sizes = {len(arrays[name]) for name in specs}
    if len(sizes) != 1:
        raise typer.BadParameter(f"the inputs in {path} have different lengths: {sorted(sizes)}")

    def read(places: range) -> dict[str, np.ndarray]:
        return {name: arrays[name][places.start : places.stop] for name in specs}

    return Inputs([str(i) for i in range(sizes.pop())], read)


def _image_reader(
    files: Sequence[Path], shape: list[int | None], bgr: bool
) -> Callable[[range], np.ndarray]:
    channels = shape[3] if len(shape) == 4 else 1
    if len(shape) not in (3, 4) or channels not in (1, 3):
        raise typer.BadParameter(
            f"expected a model that takes images, [N, height, width] or with 1 or 3 channels; this "
            f"one takes {shape}: use an .npz"
        )
    height, width = shape[1:3]
    resize = None if height is None or width is None else (height, width)
    source = ImageFromFile(files, channels, resize)

    def read(places: range) -> np.ndarray:
        images = [source[place][0] for place in places]
        sizes = {image.shape for image in images}
        if len(sizes) != 1:
            raise typer.BadParameter(
                f"the model takes images of any size, but one size in a batch, and these have "
                f"{sorted(sizes)}: --batch 1 predicts each by itself"
            )
        stacked = np.stack(images)
        if bgr:
            stacked = stacked[..., ::-1]
        return stacked[..., 0] if len(shape) == 3 else stacked

    return read

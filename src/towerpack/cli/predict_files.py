"""Files in, files out, for `towerpack predict`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from towerpack.core.files import atomic_file
from towerpack.dataflow.format import ImageFromFile

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
InputSpecs = dict[str, tuple[str, list[int | None]]]


@dataclass
class Inputs:
    """Rows to predict: arrays by input, and what each row is called."""

    arrays: dict[str, Any]
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)


def read_inputs(path: Path, specs: InputSpecs, scale: float) -> Inputs:
    """The rows of an `.npz`, or the image files in a directory (or one file)."""
    if not path.exists():
        raise typer.BadParameter(f"there is no {path}")
    if path.suffix == ".npz":
        return _read_npz(path, specs)
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    if not files:
        raise typer.BadParameter(f"{path} holds no images ({', '.join(IMAGE_SUFFIXES)})")
    if len(specs) != 1:
        raise typer.BadParameter(
            f"images can be given to a model with one input; this has {sorted(specs)}: use an .npz"
        )
    ((name, (dtype, shape)),) = specs.items()
    images = _read_images(files, shape)
    # Left as they are where the model takes pixels; scaled where it takes numbers.
    images = images if dtype == "uint8" else (images * scale).astype(dtype)
    root = path if path.is_dir() else path.parent
    return Inputs({name: images}, [str(file.relative_to(root)) for file in files])


def _read_npz(path: Path, specs: InputSpecs) -> Inputs:
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    missing = sorted(set(specs) - set(arrays))
    if missing:
        raise typer.BadParameter(f"{path} lacks the inputs {missing}; it has {sorted(arrays)}")
    sizes = {len(arrays[name]) for name in specs}
    if len(sizes) != 1:
        raise typer.BadParameter(f"the inputs in {path} have different lengths: {sorted(sizes)}")
    return Inputs({name: arrays[name] for name in specs}, [str(i) for i in range(sizes.pop())])


def _read_images(files: Sequence[Path], shape: list[int | None]) -> np.ndarray:
    channels = shape[3] if len(shape) == 4 else 1
    if len(shape) not in (3, 4) or channels not in (1, 3):
        raise typer.BadParameter(
            f"expected a model that takes images, [N, height, width] or with 1 or 3 channels; this "
            f"one takes {shape}: use an .npz"
        )
    height, width = shape[1:3]
    resize = None if height is None or width is None else (height, width)
    images = [image for (image,) in ImageFromFile(files, channels, resize)]
    sizes = {image.shape for image in images}
    if len(sizes) != 1:
        raise typer.BadParameter(f"the model takes any size, so all images need one: {sizes}")
    stacked = np.stack(images)
    return stacked[..., 0] if len(shape) == 3 else stacked


def write_outputs(path: Path, outputs: dict[str, np.ndarray], names: list[str]) -> None:
    """As the ending says: `.npz`, `.json`, or a directory of one file (or picture) for each row."""
    if path.suffix == ".npz":
        with atomic_file(path) as file:
            np.savez(file, allow_pickle=False, names=np.array(names), **outputs)
    elif path.suffix == ".json":
        rows = [
            {"name": name, **{key: array[row].tolist() for key, array in outputs.items()}}
            for row, name in enumerate(names)
        ]
        with atomic_file(path, "w") as file:
            json.dump(rows, file)
    else:
        for row, name in enumerate(names):
            _write_row(path / name, {key: array[row] for key, array in outputs.items()})


def _write_row(path: Path, values: dict[str, np.ndarray]) -> None:
    """Pictures as `.png`, if every output is one; else an `.npz`."""
    if all(_is_picture(value) for value in values.values()):
        from towerpack.core.optional import require

        cv2 = require("cv2", extra="image")
        for key, value in values.items():
            pixels = value if value.dtype == np.uint8 else np.clip(value, 0, 1) * 255
            pixels = np.rint(pixels).astype(np.uint8)
            if pixels.ndim == 3 and pixels.shape[2] == 3:
                pixels = pixels[..., ::-1]  # OpenCV writes BGR
            suffix = f".{key.replace('/', '_')}.png" if len(values) > 1 else ".png"
            with atomic_file(path.with_suffix(suffix)) as file:
                file.write(cv2.imencode(".png", pixels)[1].tobytes())
        return
    with atomic_file(path.with_suffix(".npz")) as file:
        np.savez(file, allow_pickle=False, **values)


def _is_picture(value: np.ndarray) -> bool:
    """HxW, HxWx1 or HxWx3: a map of numbers in [0, 1], or of pixels."""
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3))

"""The rows that `towerpack predict` reads and writes: images, arrays, pictures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import typer

from towerpack.checkpoint.sources import read_npz
from towerpack.core.files import atomic_file
from towerpack.dataflow import ImageFromFile
from towerpack.dataflow.format.images import encode_image

Rows = dict[str, np.ndarray]  # arrays by input or output, all with the same number of rows
InputSpecs = dict[str, tuple[str, list[int | None]]]  # key: dtype and shape
Results = Iterator[tuple[list[str], Rows]]  # names of rows, and the outputs of these rows
Inputs = tuple[list[str], Callable[[range], Rows]]
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def open_inputs(path: Path, specs: InputSpecs, scale: float, bgr: bool) -> Inputs:
    """The names of the rows to predict, and a function that reads a range of them.

    They are the rows of an `.npz`, or the image files of a directory (or one file).
    A model that takes strings gets the bytes of the files, one that takes uint8 gets pixels, and
    any other gets pixels times `scale`.
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
        raise typer.BadParameter(f"expected one input for images, not {sorted(specs)}: use an .npz")
    ((key, (dtype, shape)),) = specs.items()
    root = path if path.is_dir() else path.parent
    names = [str(file.relative_to(root)) for file in files]
    if dtype == "string" and len(shape) == 1:
        return names, lambda places: {
            key: np.array([files[i].read_bytes() for i in places], object)
        }
    read = _image_reader(files, shape, bgr)
    if dtype == "uint8":
        return names, lambda places: {key: read(places)}
    return names, lambda places: {key: (read(places) * scale).astype(dtype)}


def _from_npz(path: Path, specs: InputSpecs) -> Inputs:
    arrays = read_npz(path)
    missing = sorted(set(specs) - set(arrays))
    if missing:
        raise typer.BadParameter(f"{path} lacks the inputs {missing}; it has {sorted(arrays)}")
    sizes = {len(arrays[name]) for name in specs}
    if len(sizes) != 1:
        raise typer.BadParameter(f"the inputs in {path} have different lengths: {sorted(sizes)}")

    def read(places: range) -> Rows:
        return {name: arrays[name][places.start : places.stop] for name in specs}

    return [str(i) for i in range(sizes.pop())], read


def _image_reader(
    files: Sequence[Path], shape: list[int | None], bgr: bool
) -> Callable[[range], np.ndarray]:
    channels = shape[3] if len(shape) == 4 else 1
    if len(shape) not in (3, 4) or channels not in (1, 3):
        raise typer.BadParameter(
            "expected a model that takes images, [N, height, width] or with 1 or 3 channels, "
            f"received one that takes {shape}: use an .npz"
        )
    height, width = shape[1:3]
    resize = None if height is None or width is None else (height, width)
    source = ImageFromFile(files, channels, resize)

    def read(places: range) -> np.ndarray:
        images = [source[place][0] for place in places]
        sizes = {image.shape for image in images}
        if len(sizes) != 1:
            raise typer.BadParameter(
                "expected images of one size in a batch, since the model takes any size, received "
                f"{sorted(sizes)}: --batch 1 predicts each by itself"
            )
        stacked = np.stack(images)
        if bgr:
            stacked = stacked[..., ::-1]
        return stacked[..., 0] if len(shape) == 3 else stacked

    return read


def write_file(path: Path, results: Results) -> list[str]:
    """Writes all rows to one file when they are complete; returns the names of the outputs."""
    names, parts = [], []
    for some, rows in results:
        names += some
        parts.append(rows)
    arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    if path.suffix == ".npz":
        with atomic_file(path) as file:
            np.savez(file, allow_pickle=False, names=np.array(names), **arrays)
    else:
        lists = {key: array.tolist() for key, array in arrays.items()}
        rows_by_name = [
            {"name": name, **{key: values[row] for key, values in lists.items()}}
            for row, name in enumerate(names)
        ]
        with atomic_file(path, "w") as file:
            json.dump(rows_by_name, file)
    return list(arrays)


def write_files(path: Path, results: Results, names: Sequence[str], bgr: bool) -> list[str]:
    """Writes each row to a file of its own, named like its input; returns the outputs.

    If every output is a picture, each is written as a `.png`; otherwise all outputs of a row are
    written as one `.npz`. Inputs whose names differ only in the suffix keep it.
    """
    stems = Counter(str(Path(name).with_suffix("")) for name in names)
    rows: Rows = {}
    for some, rows in results:
        for row, name in enumerate(some):
            stem = str(Path(name).with_suffix(""))
            stem = stem if stems[stem] == 1 else name
            values = {key: array[row] for key, array in rows.items()}
            if not all(_is_picture(value) for value in values.values()):
                with atomic_file(path / f"{stem}.npz") as file:
                    np.savez(file, allow_pickle=False, **values)
                continue
            for key, value in values.items():
                suffix = f".{key.replace('/', '_')}.png" if len(values) > 1 else ".png"
                with atomic_file(path / f"{stem}{suffix}") as file:
                    file.write(_png(value, bgr))
    return list(rows)


def _is_picture(value: np.ndarray) -> bool:
    """HxW, HxWx1 or HxWx3: numbers in [0, 1], or pixels, or classes up to 255."""
    if value.dtype.kind not in "fiub":
        return False
    if value.dtype.kind in "iu" and not (value.min(initial=0) >= 0 and value.max(initial=0) < 256):
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3))


def _png(value: np.ndarray, bgr: bool) -> bytes:
    if value.dtype.kind not in "iu":
        value = np.rint(np.clip(value, 0, 1) * 255)
    content = encode_image(value.astype(np.uint8), "png", rgb=not bgr)
    if content is None:
        raise typer.BadParameter(f"cannot write a picture of shape {value.shape}")
    return content

"""`towerpack predict`: run a model on images or arrays, and write its outputs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from towerpack.cli.script import load_config
from towerpack.core.optional import require

Rows = dict[str, np.ndarray]  # arrays by input or output, all with the same number of rows
InputSpecs = dict[str, tuple[str, list[int | None]]]  # key: dtype and shape
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def predict(
    model: Annotated[
        str, typer.Argument(help="An export (file or directory), or FILE.py:NAME of a ModelDesc.")
    ],
    input: Annotated[Path, typer.Option(help="Images: a directory or a file; or an .npz.")],
    output: Annotated[Path, typer.Option(help="An .npz or .json file, or a directory.")],
    checkpoint: Annotated[str, typer.Option(help="For FILE.py:NAME: its weights.")] = "",
    inputs: Annotated[str, typer.Option(help="For FILE.py:NAME: inputs needed, or all.")] = "",
    outputs: Annotated[str, typer.Option(help="For FILE.py:NAME: tensors, with commas.")] = "",
    batch: Annotated[
        int, typer.Option(min=1, help="Rows in one call, if the model's batch size is open.")
    ] = 64,
    scale: Annotated[float, typer.Option(help="Factor of pixels if the model takes floats.")] = 1
    / 255,
    bgr: Annotated[bool, typer.Option("--bgr", help="Pictures are BGR, not RGB.")] = False,
    ema: Annotated[bool, typer.Option("--ema", help="Use moving averages of the weights.")] = False,
) -> None:
    """Predict images or the rows of an .npz; a directory gets a file or picture for each."""
    from towerpack.core.progress import Progress
    from towerpack.export.compare import in_batches

    specs, run = _open(model, checkpoint, inputs, outputs, ema)
    rows = _open_inputs(input, specs, scale, bgr)
    one_file = output.suffix in (".npz", ".json")
    results = OneFile(output) if one_file else FilePerRow(output, rows.names, bgr)
    fixed = _fixed_batch(specs)
    size, keys = fixed or batch, ""
    with Progress(len(rows), "predicting", "rows") as bar:
        for start in range(0, len(rows), size):
            names = rows.names[start : start + size]
            given = rows.read(range(start, start + len(names)))
            if fixed:
                (given,) = in_batches(given, size)  # the last one is filled up
            found = run(given)
            _check_rows(found, size if fixed else len(names))
            results.add(names, {key: array[: len(names)] for key, array in found.items()})
            keys = ", ".join(found)
            bar.update(len(names))
    results.close()
    typer.echo(f"{len(rows)} predicted: {keys} -> {output}")


def _fixed_batch(specs: InputSpecs) -> int | None:
    """The batch size that the model's inputs have, if it is fixed."""
    sizes = {shape[0] for _, shape in specs.values() if shape}
    return sizes.pop() if len(sizes) == 1 else None


def _check_rows(outputs: Rows, rows: int) -> None:
    for key, array in outputs.items():
        if array.shape[:1] != (rows,):
            raise typer.BadParameter(
                f"expected outputs with a row for each of {rows} inputs, received {key!r} of shape "
                f"{array.shape}"
            )


def _open(
    model: str, checkpoint: str, inputs: str, outputs: str, ema: bool
) -> tuple[InputSpecs, Callable[[Rows], Rows]]:
    """The inputs of the model, and a function from arrays to arrays by name."""
    from towerpack.export import open_export
    from towerpack.predict import OfflinePredictor

    if Path(model).exists():
        try:
            export = open_export(model)
        except FileNotFoundError as error:
            raise typer.BadParameter(str(error)) from error
        return export.inputs, export
    if ":" not in model:
        raise typer.BadParameter(
            f"there is no file or directory {model}; expected an export, or FILE.py:NAME of a model"
        )
    config = load_config(model, checkpoint, inputs, outputs, ema)
    predictor = OfflinePredictor(config)
    specs = {spec.name: (spec.dtype.name, spec.shape.as_list()) for spec in config.input_specs}

    def run(arrays: Rows) -> Rows:
        values = predictor(*(arrays[name] for name in config.input_names))
        return dict(zip(config.output_names, values, strict=True))

    return specs, run


@dataclass
class Inputs:
    """Rows to predict: their names, and a function that reads a range of them."""

    names: list[str]
    read: Callable[[range], Rows]

    def __len__(self) -> int:
        return len(self.names)


def _open_inputs(path: Path, specs: InputSpecs, scale: float, bgr: bool) -> Inputs:
    """The rows of an `.npz`, or the image files of a directory (or one file), read when needed.

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
        raise typer.BadParameter(
            f"expected a model with one input for images, received {sorted(specs)}: use an .npz"
        )
    ((key, (dtype, shape)),) = specs.items()
    root = path if path.is_dir() else path.parent
    names = [str(file.relative_to(root)) for file in files]
    if dtype == "string" and len(shape) == 1:
        return Inputs(
            names, lambda places: {key: np.array([files[i].read_bytes() for i in places], object)}
        )
    read = _image_reader(files, shape, bgr)
    if dtype == "uint8":
        return Inputs(names, lambda places: {key: read(places)})
    return Inputs(names, lambda places: {key: (read(places) * scale).astype(dtype)})


def _from_npz(path: Path, specs: InputSpecs) -> Inputs:
    from towerpack.checkpoint.sources import read_npz

    arrays = read_npz(path)
    missing = sorted(set(specs) - set(arrays))
    if missing:
        raise typer.BadParameter(f"{path} lacks the inputs {missing}; it has {sorted(arrays)}")
    sizes = {len(arrays[name]) for name in specs}
    if len(sizes) != 1:
        raise typer.BadParameter(f"the inputs in {path} have different lengths: {sorted(sizes)}")

    def read(places: range) -> Rows:
        return {name: arrays[name][places.start : places.stop] for name in specs}

    return Inputs([str(i) for i in range(sizes.pop())], read)


def _image_reader(
    files: Sequence[Path], shape: list[int | None], bgr: bool
) -> Callable[[range], np.ndarray]:
    from towerpack.dataflow.format import ImageFromFile

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


class OneFile:
    """All rows in one file, which appears when it is closed."""

    def __init__(self, path: Path):
        self.path = path
        self._names: list[str] = []
        self._parts: list[Rows] = []

    def add(self, names: Sequence[str], rows: Rows) -> None:
        self._names += names
        self._parts.append(rows)

    def close(self) -> None:
        from towerpack.core.files import atomic_file

        arrays = {
            key: np.concatenate([part[key] for part in self._parts]) for key in self._parts[0]
        }
        if self.path.suffix == ".npz":
            with atomic_file(self.path) as file:
                np.savez(file, allow_pickle=False, names=np.array(self._names), **arrays)
            return
        rows = [
            {"name": name, **{key: array[row].tolist() for key, array in arrays.items()}}
            for row, name in enumerate(self._names)
        ]
        with atomic_file(self.path, "w") as file:
            json.dump(rows, file)


class FilePerRow:
    """Each row in a file of its own, named like its input and written at once.

    If every output is a picture, each is written as a `.png`; otherwise all outputs of a row are
    written as one `.npz`. Inputs whose names differ only in the suffix keep it.
    """

    def __init__(self, path: Path, names: Sequence[str], bgr: bool):
        self.path, self.bgr = path, bgr
        self._stems = Counter(str(Path(name).with_suffix("")) for name in names)

    def add(self, names: Sequence[str], rows: Rows) -> None:
        for row, name in enumerate(names):
            stem = str(Path(name).with_suffix(""))
            stem = stem if self._stems[stem] == 1 else name
            self._write(stem, {key: array[row] for key, array in rows.items()})

    def close(self) -> None:
        """Does nothing: every row is written already."""

    def _write(self, stem: str, values: Rows) -> None:
        from towerpack.core.files import atomic_file

        if not all(_is_picture(value) for value in values.values()):
            with atomic_file(self.path / f"{stem}.npz") as file:
                np.savez(file, allow_pickle=False, **values)
            return
        for key, value in values.items():
            suffix = f".{key.replace('/', '_')}.png" if len(values) > 1 else ".png"
            with atomic_file(self.path / f"{stem}{suffix}") as file:
                file.write(_png(value, self.bgr))


def _is_picture(value: np.ndarray) -> bool:
    """HxW, HxWx1 or HxWx3: numbers in [0, 1], or pixels, or classes up to 255."""
    if value.dtype.kind not in "fiub":
        return False
    if value.dtype.kind in "iu" and not (value.min(initial=0) >= 0 and value.max(initial=0) < 256):
        return False
    return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (1, 3))


def _png(value: np.ndarray, bgr: bool) -> bytes:
    cv2 = require("cv2", extra="image")
    if value.dtype.kind not in "iu":
        value = np.rint(np.clip(value, 0, 1) * 255)
    pixels = value.astype(np.uint8)
    if pixels.ndim == 3 and pixels.shape[2] == 3 and not bgr:
        pixels = pixels[..., ::-1]  # OpenCV takes BGR
    done, data = cv2.imencode(".png", np.ascontiguousarray(pixels))
    if not done:
        raise typer.BadParameter(f"cannot write a picture of shape {pixels.shape}")
    content: bytes = data.tobytes()
    return content

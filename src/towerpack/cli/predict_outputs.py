"""What `towerpack predict` writes: one `.npz` or `.json`, or a file or picture for each row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import typer

from towerpack.core.files import atomic_file
from towerpack.core.optional import require

Rows = dict[str, np.ndarray]  # arrays by output, all with the same number of rows


def open_outputs(path: Path, names: Sequence[str], bgr: bool) -> OneFile | FilePerRow:
    """A writer for rows of these names: `add(names, arrays)` batch by batch, then `close()`."""
    if path.suffix in (".npz", ".json"):
        return OneFile(path)
    return FilePerRow(path, names, bgr)


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
    """Each row in a file of its own, named like its input, at once.

    Pictures are written as `.png` if every output is one, else all of them as one `.npz`. Inputs
    whose names differ in the ending alone keep it.
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
        """Nothing is left to do."""

    def _write(self, stem: str, values: Rows) -> None:
        if not all(is_picture(value) for value in values.values()):
            with atomic_file(self.path / f"{stem}.npz") as file:
                np.savez(file, allow_pickle=False, **values)
            return
        for key, value in values.items():
            suffix = f".{key.replace('/', '_')}.png" if len(values) > 1 else ".png"
            with atomic_file(self.path / f"{stem}{suffix}") as file:
                file.write(_png(value, self.bgr))


def is_picture(value: np.ndarray) -> bool:
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

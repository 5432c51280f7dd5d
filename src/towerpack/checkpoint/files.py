"""Checkpoints as files: variables by their names, in TensorFlow's own format.

`tf.train.load_checkpoint` and every old tool read them.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core.files import atomic_file, fsync_path

PREFIX = "model"
STATE_FILE = "checkpoint"
_SUFFIX = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")


def save_checkpoint(variables: Mapping[str, Any], prefix: str | Path) -> str:
    """Writes the variables to `<prefix>.index` and `<prefix>.data-*`, whole or not at all.

    Both files are written elsewhere in the directory, fsynced, and renamed, the index last: without
    it there is no checkpoint.
    """
    prefix = Path(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    names = sorted(variables)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=prefix.parent) as scratch:
        temporary = os.path.join(scratch, prefix.name)
        tf.raw_ops.SaveV2(
            prefix=temporary,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(variables[name]) for name in names],
        )
        for file in sorted(Path(scratch).iterdir()):  # data before index
            fsync_path(file)
            os.replace(file, prefix.parent / file.name)
    fsync_path(prefix.parent)
    return str(prefix)


def load_checkpoint_vars(path: str | Path) -> dict[str, np.ndarray]:
    """All variables of a checkpoint, by name; a `.npz` of `save_checkpoint_vars` too."""
    if str(path).endswith(".npz"):
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    reader = tf.train.load_checkpoint(get_checkpoint_path(path))
    return {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}


def write_state(directory: str | Path, prefixes: Sequence[str]) -> None:
    """Writes the file `checkpoint`, which names the checkpoints of a directory, the latest last."""
    names = [Path(prefix).name for prefix in prefixes]
    lines = [f"model_checkpoint_path: {json.dumps(names[-1])}\n"]
    lines += [f"all_model_checkpoint_paths: {json.dumps(name)}\n" for name in names]
    with atomic_file(Path(directory, STATE_FILE), "w") as file:
        file.writelines(lines)


def get_checkpoint_path(path: str | Path) -> str:
    """The checkpoint's prefix from what people type: a directory, or one of its files."""
    path = Path(path)
    if path.is_dir():
        path = path / STATE_FILE
    if path.name == STATE_FILE:
        latest = tf.train.latest_checkpoint(str(path.parent))
        if latest is None:
            raise FileNotFoundError(f"there is no checkpoint in {path.parent}")
        return latest
    prefix = _SUFFIX.sub("", str(path))
    if not Path(prefix + ".index").exists():
        raise FileNotFoundError(
            f"there is no checkpoint {prefix}; expected {Path(prefix).name}.index in {path.parent}"
        )
    return prefix

"""All variables of a checkpoint as a dict, and a dict as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.checkpoint.manifest import CorruptCheckpoint
from towerpack.checkpoint.open_source import open_in_turn
from towerpack.checkpoint.safetensors_file import write_safetensors
from towerpack.checkpoint.slots import owners
from towerpack.checkpoint.snapshot import view_of
from towerpack.checkpoint.store import save_checkpoint
from towerpack.core import logger
from towerpack.core.files import atomic_file

# A checkpoint of that name could not be told from a file of another format.
_NOT_WRITTEN = (".h5", ".hdf5", ".keras", ".npy", ".pb", ".index", ".meta", ".pkl", ".pt", ".pth")


def load_checkpoint_vars(path: str | Path) -> dict[str, np.ndarray]:
    """All values by name, of a checkpoint or any other file that `SmartInit` loads.

    Of a directory the latest checkpoint; when that is damaged, the one before it.
    """
    damage: CorruptCheckpoint | None = None
    for open_it in open_in_turn(path):
        try:
            source = open_it()
            return {
                name: value.numpy() if hasattr(value, "numpy") else np.asarray(value)
                for name, value in source.read(sorted(source.entries))
            }
        except CorruptCheckpoint as error:
            logger.warning("a damaged checkpoint is not used: %s", error)
            damage = error
    raise damage or FileNotFoundError(f"there is no checkpoint in {path}")


def save_checkpoint_vars(dic: Mapping[str, Any], path: str | Path) -> str:
    """Writes variables or arrays to a file, whole or not at all: `.npz`, `.safetensors`, or else a
    checkpoint of that prefix.

    >>> import tempfile
    >>> path = save_checkpoint_vars({"fc/W:0": np.ones(3)}, tempfile.mkdtemp() + "/weights.npz")
    >>> list(load_checkpoint_vars(path))
    ['fc/W']
    """
    if str(path).lower().endswith(_NOT_WRITTEN):
        raise ValueError(
            f"expected a name ending in .npz or .safetensors, or else the prefix of a checkpoint, "
            f"received {path}"
        )
    values = {name.removesuffix(":0"): view_of(value) for name, value in dic.items()}
    if str(path).endswith(".npz"):
        with atomic_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **values)
    elif str(path).endswith(".safetensors"):
        write_safetensors(values, path)
    else:
        save_checkpoint(values, path)
    return str(path)


def model_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the model needs to predict: without slots, averages and counters."""
    foreign = owners(variables)
    return {name: variable for name, variable in variables.items() if name not in foreign}


def dump_model_params(variables: Mapping[str, Any], path: str | Path) -> str:
    """Writes the variables of a model without its optimizer's, to publish them.

    `variables` are `trainer.store.saved()`, or what `load_checkpoint_vars` gave.
    """
    return save_checkpoint_vars(model_variables(variables), path)


load_chkpt_vars = load_checkpoint_vars
save_chkpt_vars = save_checkpoint_vars

"""tensorpack's names for loading and saving values: each is `SmartInit` or a function of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from towerpack.checkpoint import (
    ModelLoader,
    SmartInit,
    load_checkpoint_vars,
    save_checkpoint_vars,
)

__all__ = [
    "DictRestore",
    "SaverRestore",
    "SaverRestoreRelaxed",
    "get_model_loader",
    "load_chkpt_vars",
    "save_chkpt_vars",
]


def DictRestore(variable_dict: Mapping[str, Any], ignore_mismatch: bool = False) -> ModelLoader:
    """Loads from a dict of arrays; values of the same size and another shape are reshaped."""
    if not isinstance(variable_dict, Mapping):
        raise TypeError(f"expected a dict of arrays, received {variable_dict!r}")
    return SmartInit(variable_dict, ignore_mismatch=ignore_mismatch)


def SaverRestore(
    model_path: str | Path, prefix: str | None = None, ignore: Sequence[str] = ()
) -> ModelLoader:
    """Loads from a checkpoint, by equal names and shapes, into the scope `prefix` of the model."""
    return SmartInit(model_path, prefix=prefix, ignore=ignore)


def SaverRestoreRelaxed(
    model_path: str | Path, prefix: str | None = None, ignore: Sequence[str] = ()
) -> ModelLoader:
    """A `SaverRestore` that reshapes values of equal size and leaves out those that do not fit."""
    return SmartInit(model_path, prefix=prefix, ignore=ignore, ignore_mismatch=True)


get_model_loader = SmartInit
load_chkpt_vars = load_checkpoint_vars
save_chkpt_vars = save_checkpoint_vars

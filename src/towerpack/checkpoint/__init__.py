"""Checkpoints: the variables and the state of a run, written completely or not at all."""

from towerpack.checkpoint.background import BackgroundSaver, CheckpointNotWritten
from towerpack.checkpoint.directory import KeepBest, get_all_checkpoints, get_checkpoint_path
from towerpack.checkpoint.load import (
    ChainInit,
    ModelLoader,
    SmartInit,
)
from towerpack.checkpoint.manifest import CorruptCheckpoint
from towerpack.checkpoint.report import LoadError, LoadReport
from towerpack.checkpoint.sources import UntrustedFile
from towerpack.checkpoint.store import load_run, save_checkpoint
from towerpack.checkpoint.tensorflow_file import verify_checkpoint
from towerpack.checkpoint.variables import (
    dump_model_params,
    load_checkpoint_vars,
    save_checkpoint_vars,
)

__all__ = [
    "BackgroundSaver",
    "ChainInit",
    "CheckpointNotWritten",
    "CorruptCheckpoint",
    "KeepBest",
    "LoadError",
    "LoadReport",
    "ModelLoader",
    "SmartInit",
    "UntrustedFile",
    "dump_model_params",
    "get_all_checkpoints",
    "get_checkpoint_path",
    "load_checkpoint_vars",
    "load_run",
    "save_checkpoint",
    "save_checkpoint_vars",
    "verify_checkpoint",
]

"""A run on disk: its variables by name and its state, written completely or not at all."""

from towerpack.checkpoint.background import BackgroundSaver, CheckpointNotWritten
from towerpack.checkpoint.directory import KeepBest, get_all_checkpoints, get_checkpoint_path
from towerpack.checkpoint.load import (
    ChainInit,
    DictRestore,
    ModelLoader,
    SaverRestore,
    SaverRestoreRelaxed,
    SmartInit,
    get_model_loader,
)
from towerpack.checkpoint.manifest import CorruptCheckpoint
from towerpack.checkpoint.report import LoadError, LoadReport
from towerpack.checkpoint.sources import UntrustedFile
from towerpack.checkpoint.store import load_run, save_checkpoint
from towerpack.checkpoint.tensorflow_file import verify_checkpoint
from towerpack.checkpoint.variables import (
    dump_model_params,
    load_checkpoint_vars,
    load_chkpt_vars,
    save_checkpoint_vars,
    save_chkpt_vars,
)

__all__ = [
    "BackgroundSaver",
    "ChainInit",
    "CheckpointNotWritten",
    "CorruptCheckpoint",
    "DictRestore",
    "KeepBest",
    "LoadError",
    "LoadReport",
    "ModelLoader",
    "SaverRestore",
    "SaverRestoreRelaxed",
    "SmartInit",
    "UntrustedFile",
    "dump_model_params",
    "get_all_checkpoints",
    "get_checkpoint_path",
    "get_model_loader",
    "load_checkpoint_vars",
    "load_chkpt_vars",
    "load_run",
    "save_checkpoint",
    "save_checkpoint_vars",
    "save_chkpt_vars",
    "verify_checkpoint",
]

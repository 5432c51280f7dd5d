"""What a run is, on disk: variables by name and where it stands, written whole or not at all."""

from towerpack.checkpoint.background import BackgroundSaver, CheckpointNotWritten
from towerpack.checkpoint.keep import KeepBest
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
from towerpack.checkpoint.names import get_all_checkpoints, get_checkpoint_path
from towerpack.checkpoint.report import LoadError, LoadReport
from towerpack.checkpoint.store import load_run, save_checkpoint
from towerpack.checkpoint.untrusted import UntrustedFile
from towerpack.checkpoint.variables import (
    dump_model_params,
    load_checkpoint_vars,
    load_chkpt_vars,
    save_checkpoint_vars,
    save_chkpt_vars,
)
from towerpack.checkpoint.verify import verify_checkpoint

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

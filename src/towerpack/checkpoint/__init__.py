"""What a run is, on disk: variables by name, written whole or not at all, loaded with a report."""

from towerpack.checkpoint.files import get_checkpoint_path, load_checkpoint_vars, save_checkpoint
from towerpack.checkpoint.load import (
    LoadError,
    LoadReport,
    ModelLoader,
    SmartInit,
    get_model_loader,
)

__all__ = [
    "LoadError",
    "LoadReport",
    "ModelLoader",
    "SmartInit",
    "get_checkpoint_path",
    "get_model_loader",
    "load_checkpoint_vars",
    "save_checkpoint",
]

"""Saving the model."""

from __future__ import annotations

from pathlib import Path

from towerpack.callbacks.base import Callback
from towerpack.checkpoint.files import PREFIX, save_checkpoint, write_state
from towerpack.core import logger


class ModelSaver(Callback):
    """Saves all variables as `model-<step>` after every epoch and keeps the last `max_to_keep`.

    A file is there whole or not at all. The file `checkpoint` names the latest.
    """

    def __init__(self, max_to_keep: int = 10, checkpoint_dir: str | Path | None = None):
        if max_to_keep < 1:
            raise ValueError(f"expected to keep at least one checkpoint, received {max_to_keep}")
        self.max_to_keep = max_to_keep
        self.checkpoint_dir = checkpoint_dir
        self._kept: list[str] = []

    def _before_train(self) -> None:
        directory = self.checkpoint_dir or logger.get_logger_dir()
        if directory is None:
            raise ValueError(
                "ModelSaver needs a directory: call logger.set_logger_dir(...) or "
                "logger.auto_set_dir() first, or pass checkpoint_dir"
            )
        self._directory = Path(directory)

    def _trigger(self) -> None:
        path = save_checkpoint(
            self.trainer.store.saved(), self._directory / f"{PREFIX}-{self.global_step}"
        )
        self._kept = [old for old in self._kept if old != path] + [path]
        outdated, self._kept = self._kept[: -self.max_to_keep], self._kept[-self.max_to_keep :]
        write_state(self._directory, self._kept)
        # Only now, when nothing refers to them any more.
        for old in outdated:
            for file in self._directory.glob(f"{Path(old).name}.*"):
                file.unlink()

"""A config that always takes up what is there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from towerpack.checkpoint import ModelLoader, SaverRestore
from towerpack.checkpoint.directory import sound_checkpoints
from towerpack.core import logger
from towerpack.monitor import JSONWriter
from towerpack.train.config import TrainConfig
from towerpack.train.resume import AUTO, find_run


@dataclass(kw_only=True)
class AutoResumeTrainConfig(TrainConfig):
    """A `TrainConfig` with `resume='auto'`, which also goes on from checkpoints of tensorpack.

    Those do not know where the run stood: they give the weights, and `stats.json` beside them the
    epoch. With `always_resume=False`, a `session_init` or `starting_epoch` that was passed is
    preferred to what is in the directory.
    """

    always_resume: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.always_resume and (self.session_init is not None or self.starting_epoch != 1):
            return
        self.resume = self.resume or AUTO
        directory = logger.get_logger_dir() if self.resume == AUTO else Path(self.resume)
        if directory is None or find_run(directory) is not None:
            return
        old = find_old_run(directory)
        if old is not None:
            self.session_init, self.starting_epoch = old


def find_old_run(directory: str | Path) -> tuple[ModelLoader, int] | None:
    """What a directory of tensorpack has to go on from: weights, and the epoch to begin with.

    Its checkpoints do not know where the run stood; `stats.json` beside them has the last epoch.
    """
    for prefix in sound_checkpoints(directory):
        epoch = _last_epoch(Path(directory))
        if epoch is None:
            raise FileNotFoundError(
                f"{prefix} was not saved by towerpack, and without stats.json in {directory} its "
                "epoch is not known; pass session_init and starting_epoch instead"
            )
        return SaverRestore(prefix), epoch + 1
    return None


def _last_epoch(directory: Path) -> int | None:
    epoch = JSONWriter.load_existing_epoch_number(directory)
    path = directory / JSONWriter.LIST
    if epoch is None and path.exists():  # tensorpack wrote only the list
        try:
            records = json.loads(path.read_bytes())
            epoch = int(records[-1]["epoch_num"]) if records else None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            logger.warning("%s is damaged, so it does not give the epoch: %s", path, error)
    return epoch

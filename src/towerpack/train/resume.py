"""Taking up a run where its last checkpoint left it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towerpack.checkpoint import CorruptCheckpoint, LoadReport, ModelLoader, SaverRestore, load_run
from towerpack.checkpoint.names import sound_checkpoints
from towerpack.checkpoint.store import recover
from towerpack.checkpoint.verify import verify_checkpoint
from towerpack.core import logger

AUTO = "auto"


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint that knows where its run stood."""

    prefix: str
    run: dict[str, Any]

    @property
    def state(self) -> dict[str, Any]:
        return self.run["state"]

    @property
    def epochs_done(self) -> int:
        """Whole epochs, with all that callbacks do at their ends."""
        in_the_middle = 0 <= self.state["local_step"] < self.state["steps_per_epoch"] - 1
        return self.state["epoch_num"] - in_the_middle


class ResumedRun(ModelLoader):
    """The run in a directory, as something to load: its variables, all of them and exactly.

    After `load`, `run_state` is what the trainer has to `restore`: of the same checkpoint, which is
    the latest unless that turned out to be damaged. Made by `find_run`.
    """

    def __init__(self, points: list[ResumePoint]):
        self.points = points

    @property
    def seed(self) -> int:
        """Of the towers' random numbers; a trainer needs it before its step is traced."""
        return self.points[0].state["seed"]

    def is_finished(self, max_epoch: int) -> bool:
        """Whether there is nothing left to train."""
        latest = self.points[0]
        return latest.epochs_done >= max_epoch and not verify_checkpoint(latest.prefix)

    def load(self, variables: Mapping[str, Any], strict: bool = True) -> LoadReport:
        damage: CorruptCheckpoint | None = None
        for point in self.points:
            try:
                report = SaverRestore(point.prefix).load(variables, strict=True)
            except CorruptCheckpoint as error:
                logger.warning("the checkpoint %s is damaged and not used: %s", point.prefix, error)
                damage = error
                continue
            self.run_state = point.state
            logger.info(
                "going on from %s: epoch %d, step %d",
                point.prefix,
                point.state["epoch_num"],
                point.state["global_step"],
            )
            return report
        raise damage or FileNotFoundError("there is no checkpoint to go on from")


def find_run(resume: str | Path | None) -> ResumedRun | None:
    """The run to take up, or None if there is none: then a new one begins.

    `resume` is 'auto' for the logger's directory, or a directory with checkpoints. What an
    interrupted save left there is removed.
    """
    if resume is None:
        return None
    directory = logger.get_logger_dir() if resume == AUTO else Path(resume)
    if directory is None:
        raise ValueError(
            "resume='auto' needs a directory: call logger.set_logger_dir(...) or "
            "logger.auto_set_dir() first"
        )
    recover(directory)
    points = []
    for prefix in sound_checkpoints(directory):
        run = load_run(prefix)
        if run is not None:
            points.append(ResumePoint(prefix, run))
    if not points:
        logger.info("there is no run to take up in %s; a new one begins", directory)
        return None
    return ResumedRun(points)


def say_towers(saved: int | None, now: int) -> None:
    """Says when another number of towers changes what a step is."""
    if saved is not None and saved != now:
        logger.warning(
            "the checkpoint is of a run with %d towers, this one has %d: a step is the same only "
            "if each tower's batch is %g times as large",
            saved,
            now,
            saved / now,
        )

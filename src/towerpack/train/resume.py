"""Resuming a run from its last checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towerpack.checkpoint import CorruptCheckpoint, LoadReport, ModelLoader, SmartInit, load_run
from towerpack.checkpoint.directory import sound_checkpoints
from towerpack.checkpoint.store import recover
from towerpack.checkpoint.tensorflow_file import verify_checkpoint
from towerpack.core import logger
from towerpack.core.cluster import is_chief, this_cluster
from towerpack.monitor import JSONWriter

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
                report = SmartInit(point.prefix).load(variables, strict=True)
            except CorruptCheckpoint as error:
                logger.warning("the checkpoint %s is damaged and not used: %s", point.prefix, error)
                damage = error
                continue
            self.run_state = point.state
            logger.info(
                "resuming from %s: epoch %d, step %d",
                point.prefix,
                point.state["epoch_num"],
                point.state["global_step"],
            )
            return report
        raise damage or FileNotFoundError("there is no checkpoint to resume from")


def find_run(resume: str | Path | None) -> ResumedRun | None:
    """The run to resume, or None if there is none: then a new one begins.

    `resume` is 'auto' for the logger's directory, or a directory with checkpoints. What an
    interrupted save left there is removed. A run that its launcher has started again resumes from
    its own checkpoints in either of these directories, if it has saved any. Only the chief of
    several ranks looks, and tells the others what it found.
    """
    if not is_chief():
        return None
    directory = logger.get_logger_dir() if resume in (None, AUTO) else Path(resume)
    found = _run_before_restart(directory, logger.get_logger_dir())
    if not found and resume is not None:
        if directory is None:
            raise ValueError(
                "resume='auto' needs a directory: call logger.set_logger_dir(...) or "
                "logger.auto_set_dir() first"
            )
        found = _points(directory)
        if not found:
            logger.info("there is no run to resume in %s; a new one begins", directory)
    return ResumedRun(found) if found else None


def job() -> str:
    """The name that all starts of this run by its launcher have in common; empty without one."""
    cluster = this_cluster()
    return cluster.job if cluster else ""


def _run_before_restart(*directories: str | Path | None) -> list[ResumePoint]:
    """The checkpoints that this run has saved before its launcher started it again."""
    cluster = this_cluster()
    if cluster is None or not cluster.attempt:
        return []
    places = dict.fromkeys(os.path.abspath(directory) for directory in directories if directory)
    found = [point for place in places for point in _points(place)]
    own = [point for point in found if point.state.get("job") == cluster.job]
    if not own:
        where = f" in {' or '.join(places)}: it begins again"
        cure = where if places else ": call logger.auto_set_dir() and save checkpoints"
        logger.warning("this run has saved no checkpoint before its restart%s", cure)
    return own


def _points(directory: str | Path) -> list[ResumePoint]:
    recover(directory)
    runs = ((prefix, load_run(prefix)) for prefix in sound_checkpoints(directory))
    return [ResumePoint(prefix, run) for prefix, run in runs if run is not None]


def log_total_batch(saved: Mapping[str, Any], towers: int, batch: int | None) -> None:
    """Logs whether a step of this run equals one of the run that was saved.

    `saved` is that run's state. Towers may come and go as long as they have as many datapoints a
    step together; with another total the learning rate and every count of steps mean something
    else.
    """
    old_towers, old_batch = saved.get("towers"), saved.get("batch")
    if old_towers is None or (old_towers, old_batch) == (towers, batch):
        return
    if old_batch is None or batch is None:
        if old_towers != towers:
            logger.warning(
                "the checkpoint is of a run with %d towers, this one has %d, and the size of "
                "their batches is not known: expected each to be %g times as large, so that a step "
                "is the same",
                old_towers,
                towers,
                old_towers / towers,
            )
        return
    old_total, total = old_towers * old_batch, towers * batch
    was, now = f"{old_towers} x {old_batch}", f"{towers} x {batch}"
    if old_total == total:
        logger.info(
            "the total batch (towers x batch) stays %d: it was %s and now is %s", total, was, now
        )
        return
    fitting = f"{old_total / towers:g}"
    logger.warning(
        "expected the total batch (towers x batch) of the checkpoint, %s = %d, received %s = %d: "
        "the run continues, but a step has %g times as many datapoints, so the learning rate and "
        "schedules by steps mean something else. Batches of %s for each of %d towers would keep it",
        was,
        old_total,
        now,
        total,
        total / old_total,
        fitting,
        towers,
    )


def find_old_run(directory: str | Path) -> tuple[ModelLoader, int] | None:
    """The weights of a run of tensorpack, and the epoch to begin with.

    Its checkpoints do not contain the state of the run; `stats.json` beside them has the last
    epoch.
    """
    for prefix in sound_checkpoints(directory):
        epoch = _last_epoch(Path(directory))
        if epoch is None:
            raise FileNotFoundError(
                f"{prefix} was not saved by towerpack, and without stats.json in {directory} its "
                "epoch is not known; pass session_init and starting_epoch instead"
            )
        return SmartInit(prefix), epoch + 1
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

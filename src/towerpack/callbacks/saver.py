"""Saving the run."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towerpack._version import __version__
from towerpack.callbacks.base import Callback, TrainerView
from towerpack.callbacks.interval import interval_of
from towerpack.checkpoint.background import BackgroundSaver
from towerpack.checkpoint.directory import PREFIX, Keep, KeepBest, Saved, write_state
from towerpack.checkpoint.manifest import MANIFEST_SUFFIX, CorruptCheckpoint, Manifest
from towerpack.checkpoint.store import files_of, remove_checkpoint
from towerpack.core import logger
from towerpack.core.every import Every

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy")
_COLLECTIONS = ("variables", "trainable_variables")


class ModelSaver(Callback):
    """Saves the whole run as `model-<step>`, after every epoch or at the interval `every`.

    A checkpoint holds all variables by name and where the run stands (steps, position in the data,
    states of callbacks), so that a run resumed from it goes on exactly there. It is taken between
    two steps, when all callbacks have seen the event, and written by a thread while training goes
    on; the next save waits for it. A write that fails is logged and counted, and three in a row
    raise. SIGTERM, Ctrl-C and the end of training save as well, and wait until it is on the disk.

    The last `max_to_keep` stay, one in every `keep_checkpoint_every_n_hours` for good, and the
    best by `keep_best`. The file `checkpoint` names the latest. Checkpoints of an earlier run that
    are still in the directory are left alone, unless this run resumed it.

    >>> from towerpack import KeepBest
    >>> saver = ModelSaver(3, every="10 min", keep_best=KeepBest("validation_error"))
    """

    def __init__(
        self,
        max_to_keep: int = 10,
        keep_checkpoint_every_n_hours: float | None = 0.5,
        checkpoint_dir: str | Path | None = None,
        var_collections: str | Sequence[str] | None = None,
        *,
        every: str | Every | None = None,
        keep_best: KeepBest | None = None,
    ):
        self.keep = Keep(max_to_keep, keep_checkpoint_every_n_hours, keep_best)
        self.checkpoint_dir = checkpoint_dir
        self.only_trainable = _only_trainable(var_collections)
        self._interval = interval_of(None, None, every) if every is not None else None
        self.saver = BackgroundSaver()
        self._kept: list[Saved] = []
        self._restored: list[str] | None = None
        self._began = time.time()
        self._step: int | None = None  # of the last save, by this run or the one that it resumes
        self._last: str | None = None  # the last that this run began to write
        self._wanted_at_end = False

    def _before_train(self) -> None:
        self._directory = directory_for(self, self.checkpoint_dir)
        check_variables(self)
        self.saver.open(self._directory)
        self.saver.reserve(self._variables())
        if self._interval is not None:
            self._interval.start(self.trainer)
        restored, self._restored = self._restored, None  # an object may serve several runs
        self._kept, self._step, self._last = [], None, None
        if restored is not None:
            self._step = self.global_step
            names = dict.fromkeys([*restored, f"{PREFIX}-{self._step}"])
            self._kept = [saved for name in names if (saved := self._found(name)) is not None]

    def _trigger(self) -> None:
        self.trainer.when_settled(self._save)

    def _trigger_epoch(self) -> None:
        last = self.epoch_num == self.trainer.max_epoch
        if self._interval is None or self._wanted_at_end or last or self._due_at_epoch():
            self.trigger()
        self._wanted_at_end = False

    def _due_at_epoch(self) -> bool:
        return self._interval is not None and self._interval.is_epoch(self.epoch_num)

    def _trigger_step(self) -> None:
        if self._interval is None or not self._interval.due_step(self.trainer):
            return
        if self.local_step == self.trainer.steps_per_epoch - 1:
            # Not before the callbacks have seen the end of the epoch: a resumed run would never
            # come back to it.
            self._wanted_at_end = True
        else:
            self.trigger()

    def _next_due(self) -> int | None:
        if self._interval is None:
            return None
        return self._interval.next_step(self.trainer, self.global_step + 1)

    def _interrupted(self) -> None:
        self._save()
        self.saver.wait()

    def _after_train(self) -> None:
        self.saver.close()

    def _save(self) -> None:
        if self._step == self.global_step:
            return  # asked for twice at one moment
        self.saver.wait()  # the state below includes what that write leaves behind
        step, name, value = self.global_step, f"{PREFIX}-{self.global_step}", self._monitored()
        self.saver.save(
            self._directory / name,
            self._variables(),
            run=run_of(self.trainer),
            step=step,
            monitored={self.keep.best.stat: value} if self.keep.best and value is not None else {},
            then=lambda manifest: self._written(name, manifest),
        )
        self._step, self._last = step, name

    def _variables(self) -> dict[str, Any]:
        store = self.trainer.store
        return store.trainable() if self.only_trainable else store.saved()

    def _written(self, name: str, manifest: Manifest) -> None:
        """In the writing thread: the checkpoint is there; now it becomes the latest."""
        saved = _saved(name, manifest, self.keep.best)
        everything = [old for old in self._kept if old.name != saved.name] + [saved]
        outdated = self.keep.outdated(everything, self._began)
        self._kept = [each for each in everything if each not in outdated]
        write_state(self._directory, [each.name for each in self._kept])
        for old in outdated:  # only now, when nothing refers to them any more
            remove_checkpoint(self._directory / old.name)

    def _monitored(self) -> float | None:
        if self.keep.best is None:
            return None
        try:
            step, value = self.trainer.monitors.get_history(self.keep.best.stat)[-1]
        except KeyError as error:
            logger.warning("%s cannot keep the best: %s", self, error.args[0])
            return None
        return value if step == self.global_step else None

    def _found(self, name: str) -> Saved | None:
        """A checkpoint that the resumed run had kept, if it is still there."""
        prefix = self._directory / name
        if not files_of(prefix):
            return None
        try:
            manifest = Manifest.read(f"{prefix}{MANIFEST_SUFFIX}")
        except (CorruptCheckpoint, FileNotFoundError):
            return Saved(name, saved_at=0.0)  # damaged: the first to go
        return _saved(name, manifest, self.keep.best)

    def _state(self) -> dict[str, Any]:
        names = [each.name for each in self._kept]
        if self._last is not None:  # it may still be being written; if that fails, nobody finds it
            names = list(dict.fromkeys([*names, self._last]))
        return {"kept": names, "began": self._began}

    def _restore(self, state: dict[str, Any]) -> None:
        self._restored, self._began = state["kept"], state["began"]


def _saved(name: str, manifest: Manifest, best: KeepBest | None) -> Saved:
    return Saved(name, manifest.saved_at, manifest.monitored.get(best.stat) if best else None)


def _only_trainable(collections: str | Sequence[str] | None) -> bool:
    names = [collections] if isinstance(collections, str) else list(collections or _COLLECTIONS[:1])
    unknown = sorted(set(names) - set(_COLLECTIONS))
    if unknown:
        raise ValueError(f"expected var_collections of {_COLLECTIONS}, received {unknown}")
    return _COLLECTIONS[0] not in names


def directory_for(callback: Callback, directory: str | Path | None) -> Path:
    """Where a saver writes: its own directory, or the run's."""
    found = directory or logger.get_logger_dir()
    if found is None:
        raise ValueError(
            f"{callback} needs a directory: call logger.set_logger_dir(...) or "
            "logger.auto_set_dir() first, or pass checkpoint_dir"
        )
    return Path(found)


def check_variables(callback: Callback) -> None:
    """Refuses to save what a resumed run could not load: nothing, or not all variables."""
    store = callback.trainer.store
    if store.unbuilt:
        raise ValueError(
            f"{callback} cannot save {', '.join(store.unbuilt)}, whose variables do not exist yet. "
            "Make them before training: call a model once on an example, and "
            "optimizer.build(model.trainable_variables)"
        )
    if not store.saved():
        raise ValueError(
            f"{callback} found no variables to save in {type(callback.trainer).__name__}. A "
            "trainer of your own keeps variables and Keras objects in attributes (self.model = "
            "...), or adds them by self.store.adopt(name, variable)"
        )


def run_of(trainer: TrainerView) -> dict[str, Any]:
    """What a checkpoint keeps besides the variables: where the run stands, and what it is."""
    versions = {"towerpack": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "format": 1,
        "state": trainer.state(),
        "config": {
            **trainer.configuration(),
            "steps_per_epoch": trainer.steps_per_epoch,
            "max_epoch": trainer.max_epoch,
        },
        "versions": versions,
    }

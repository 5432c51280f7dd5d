"""Saving the run, and its best model."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from towerpack._version import __version__
from towerpack.callbacks.base import Callback, TrainerView, latest_scalar, run_directory
from towerpack.callbacks.ema import EMA, is_average
from towerpack.callbacks.interval import interval_of
from towerpack.checkpoint.background import BackgroundSaver
from towerpack.checkpoint.directory import PREFIX, Keep, KeepBest, Saved, write_state
from towerpack.checkpoint.manifest import MANIFEST_SUFFIX, CorruptCheckpoint, Manifest
from towerpack.checkpoint.store import files_of, remove_checkpoint
from towerpack.core import logger
from towerpack.core.every import Every
from towerpack.monitor.environment import versions

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy")
_COLLECTIONS = ("variables", "trainable_variables")


class ModelSaver(Callback):
    """Saves the whole run as `model-<step>`, after every epoch or at the interval `every`.

    A checkpoint holds all variables by name and the state of the run (steps, position in the data,
    states of callbacks), so that a run resumed from it continues exactly there. It is taken between
    two steps, after all callbacks have handled the event, and written by a thread while training
    continues; the next save waits for it. A failed write is logged and counted, and three in a row
    raise. SIGTERM, Ctrl-C and the end of training save as well, and wait for the disk.

    The last `max_to_keep` are kept, one in every `keep_checkpoint_every_n_hours` forever, and the
    best by `keep_best`. The file `checkpoint` names the latest. Checkpoints of an earlier run that
    are still in the directory are not touched, unless this run resumed it.

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
        self._interval = interval_of(every) if every is not None else None
        self.saver = BackgroundSaver()
        self._kept: list[Saved] = []
        self._restored: list[str] | None = None
        self._began = time.time()
        self._step: int | None = None  # of the last save, by this run or the one that it resumes
        self._last: str | None = None  # name of the last checkpoint that this run began to write
        self._wanted_at_end = False

    def _before_train(self) -> None:
        self._directory = _open(self, self.saver, self.checkpoint_dir)
        self.saver.reserve(self._variables())
        if self._interval is not None:
            self._interval.start(self.trainer)
        restored, self._restored = self._restored, None  # one object may serve several runs
        self._kept, self._step, self._last = [], None, None
        if restored is not None:
            self._step = self.global_step
            names = dict.fromkeys([*restored, f"{PREFIX}-{self._step}"])
            self._kept = [saved for name in names if (saved := self._found(name)) is not None]

    def _trigger(self) -> None:
        self.trainer.when_settled(self._save)

    def _trigger_epoch(self) -> None:
        last = self.epoch_num == self.trainer.max_epoch
        wanted, self._wanted_at_end = self._wanted_at_end or last, False
        if wanted or self._interval is None or self._interval.is_epoch(self.epoch_num):
            self.trigger()

    def _trigger_step(self) -> None:
        if self._interval is None or not self._interval.due_step(self.trainer):
            return
        if self.local_step == self.trainer.steps_per_epoch - 1:
            # Wait until the callbacks have handled the end of the epoch: a resumed run would not
            # return to it.
            self._wanted_at_end = True
        else:
            self.trigger()

    def _next_due(self) -> int | None:
        if self._interval is None:
            return None
        return self._interval.next_step(self.global_step + 1)

    def _interrupted(self) -> None:
        self._save()
        self.saver.wait()

    def _after_train(self) -> None:
        self.saver.close()

    def _save(self) -> None:
        if self._step == self.global_step:
            return  # requested twice at the same step
        self.saver.wait()  # the state below includes the result of that write
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
        """Makes a complete checkpoint the latest. Runs in the writing thread."""
        saved = _saved(name, manifest, self.keep.best)
        everything = [old for old in self._kept if old.name != saved.name] + [saved]
        outdated = self.keep.outdated(everything, self._began)
        self._kept = [each for each in everything if each not in outdated]
        write_state(self._directory, [each.name for each in self._kept])
        for old in outdated:  # only now, when nothing refers to them anymore
            remove_checkpoint(self._directory / old.name)

    def _monitored(self) -> float | None:
        if self.keep.best is None:
            return None
        latest = latest_scalar(self, self.keep.best.stat)
        return latest[1] if latest is not None and latest[0] == self.global_step else None

    def _found(self, name: str) -> Saved | None:
        """A checkpoint that the resumed run had kept, if it is still there."""
        prefix = self._directory / name
        if not files_of(prefix):
            return None
        try:
            manifest = Manifest.read(f"{prefix}{MANIFEST_SUFFIX}")
        except (CorruptCheckpoint, FileNotFoundError):
            return Saved(name, saved_at=0.0)  # damaged: the first to be removed
        return _saved(name, manifest, self.keep.best)

    def _state(self) -> dict[str, Any]:
        names = [each.name for each in self._kept]
        if self._last is not None:  # it may not be complete yet; if it fails, it is not found
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


def _open(callback: Callback, saver: BackgroundSaver, checkpoint_dir: str | Path | None) -> Path:
    """Opens the directory of a saver; raises if a resumed run could not load what it would save."""
    directory = run_directory(callback, checkpoint_dir, "checkpoint_dir")
    store = callback.trainer.store
    if store.unbuilt:
        raise ValueError(
            f"{callback} cannot save {', '.join(store.unbuilt)}, whose variables do not exist yet. "
            "Create them before training: call the model once on an example, and "
            "optimizer.build(model.trainable_variables)"
        )
    if not store.saved():
        raise ValueError(
            f"{callback} found no variables to save in {type(callback.trainer).__name__}. A "
            "trainer of your own must keep variables and Keras objects in attributes (self.model "
            "= ...), or add them by self.store.adopt(name, variable)"
        )
    saver.open(directory)
    return directory


def run_of(trainer: TrainerView) -> dict[str, Any]:
    """What a checkpoint stores besides the variables: the state of the run and facts about it."""
    return {
        "format": 1,
        "state": trainer.state(),
        "config": {
            **trainer.configuration(),
            "steps_per_epoch": trainer.steps_per_epoch,
            "max_epoch": trainer.max_epoch,
        },
        "versions": {
            "towerpack": __version__,
            "python": platform.python_version(),
            **versions(_PACKAGES),
        },
    }


class MinSaver(Callback):
    """Saves the run as `min-<stat>` whenever the scalar `monitor_stat` is lower than ever before.

    It checks what was logged at the current step, by any callback before or after it in the list,
    and saves by itself, in a thread: a `ModelSaver` is not needed. The best value survives a
    restart. `reverse=True` saves the highest, as `MaxSaver` does. NaN is never the best.

    With an `ema` the checkpoint holds the averages in place of the weights. It can be used but not
    resumed, and fits a scalar of an `InferenceRunner` with the same `ema`.

    >>> from towerpack.callbacks import EMA
    >>> ema = EMA(0.999)
    >>> best = MinSaver("ema_error", ema=ema)
    """

    def __init__(
        self,
        monitor_stat: str,
        reverse: bool = False,
        filename: str | None = None,
        checkpoint_dir: str | Path | None = None,
        *,
        ema: EMA | None = None,
    ):
        self.monitor_stat, self.reverse = monitor_stat, reverse
        kind = "max" if reverse else "min"
        self.filename = filename or f"{kind}-{monitor_stat.replace('/', '-')}"
        self.checkpoint_dir, self.ema = checkpoint_dir, ema
        self.saver = BackgroundSaver()
        self._best: float | None = None
        self._seen: tuple[int, float] | None = None  # step and value of the last check

    def _before_train(self) -> None:
        self._directory = _open(self, self.saver, self.checkpoint_dir)
        # The process was killed between the run's checkpoint and this one: save it now, with the
        # same weights.
        if self._seen is not None and self._seen[0] == self.global_step:
            self._save_if_better(self._seen[1])

    def _trigger(self) -> None:
        self.trainer.when_settled(self._check)

    def _check(self) -> None:
        latest = latest_scalar(self, self.monitor_stat)
        if latest is None or latest == self._seen:
            return
        self._seen = latest
        step, value = latest
        if step != self.global_step:
            if self._is_better(value):
                logger.warning(
                    "%s: %s was logged at step %d, but this is step %d, and the weights that it "
                    "measured are gone. Trigger the saver whenever the scalar is logged.",
                    self,
                    self.monitor_stat,
                    step,
                    self.global_step,
                )
            return
        self._save_if_better(value)

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        return self._best is None or (value > self._best if self.reverse else value < self._best)

    def _save_if_better(self, value: float) -> None:
        if not self._is_better(value):
            return
        self._best = value
        variables, run = self.trainer.store.saved(), run_of(self.trainer)
        if self.ema is None:
            self._save(variables, run, value)
        else:
            own = {name: variables[name] for name in variables if not is_average(name)}
            with self.ema.swapped():  # until they are copied; a thread writes the copies
                self._save(own, None, value)
        logger.info(
            "%s = %.5g is the best so far: saved as %s", self.monitor_stat, value, self.filename
        )

    def _save(self, variables: Mapping[str, Any], run: Any, value: float) -> None:
        self.saver.save(
            self._directory / self.filename,
            variables,
            run=run,
            step=self.global_step,
            monitored={self.monitor_stat: value},
        )

    def _after_train(self) -> None:
        self.saver.close()

    def _state(self) -> dict[str, Any]:
        """Includes what was logged so far, since this save may precede the next check."""
        try:
            seen = self.trainer.monitors.get_history(self.monitor_stat)[-1]
        except KeyError:
            seen = self._seen  # type: ignore[assignment]
        return {"best": self._best, "seen": list(seen) if seen else None}

    def _restore(self, state: dict[str, Any]) -> None:
        self._best = state["best"]
        self._seen = (state["seen"][0], state["seen"][1]) if state["seen"] else None


class MaxSaver(MinSaver):
    """Saves the run as `max-<stat>` whenever the scalar `monitor_stat` is higher than ever before.

    In all other respects it is a `MinSaver`.
    """

    def __init__(
        self,
        monitor_stat: str,
        filename: str | None = None,
        checkpoint_dir: str | Path | None = None,
        *,
        ema: EMA | None = None,
    ):
        super().__init__(monitor_stat, True, filename, checkpoint_dir, ema=ema)

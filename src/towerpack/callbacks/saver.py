"""Saving the run, and its best model."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from towerpack._version import __version__
from towerpack.callbacks.base import (
    Callback,
    TrainerView,
    latest_scalar,
    name_list,
    run_directory,
)
from towerpack.callbacks.ema import EMA, is_average
from towerpack.callbacks.interval import interval_of
from towerpack.checkpoint.background import BackgroundSaver
from towerpack.checkpoint.directory import PREFIX, Keep, KeepBest, Saved, step_of, write_state
from towerpack.checkpoint.manifest import MANIFEST_SUFFIX, CorruptCheckpoint, Manifest
from towerpack.checkpoint.name_template import NameTemplate
from towerpack.checkpoint.store import files_of, remove_checkpoint
from towerpack.core import logger
from towerpack.core.cluster import this_cluster
from towerpack.core.every import Every
from towerpack.monitor.environment import versions

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy")
_COLLECTIONS = ("variables", "trainable_variables")


class Saver(Callback):
    """Base of callbacks that save the run: a thread writes the checkpoints to one directory."""

    def __init__(self, checkpoint_dir: str | Path | None):
        self.checkpoint_dir = checkpoint_dir
        self.saver = BackgroundSaver()

    def _before_train(self) -> None:
        """Opens the directory; raises if a resumed run could not load what it would save."""
        self._directory = Path(self.checkpoint_dir or run_directory(self))
        store = self.trainer.store
        if store.unbuilt:
            raise ValueError(
                f"{self} cannot save {', '.join(store.unbuilt)}, whose variables do not exist yet. "
                "Create them before training: call the model once on an example, and "
                "optimizer.build(model.trainable_variables)"
            )
        if not store.saved():
            raise ValueError(
                f"{self} found no variables to save in {type(self.trainer).__name__}. A trainer of "
                "your own must keep variables and Keras objects in attributes (self.model = ...), "
                "or add them by self.store.adopt(name, variable)"
            )
        self.saver.open(self._directory)
        cluster = this_cluster()
        if cluster is not None and cluster.job and self.checkpoint_dir is not None:
            logger.info(
                "a restart by the launcher finds checkpoints in %s only with resume=%r",
                self._directory,
                str(self.checkpoint_dir),
            )

    def _after_train(self) -> None:
        self.saver.close()


class ModelSaver(Saver):
    """Saves the whole run as `model-<step>`, after every epoch or at the interval `every`.

    A checkpoint holds all variables by name and the state of the run (steps, position in the data,
    states of callbacks), so that a run resumed from it continues exactly there. It is taken between
    two steps, after all callbacks have handled the event, and written by a thread while training
    continues; the next save waits for it. A failed write is logged and counted, and three in a row
    raise. SIGTERM, Ctrl-C and the end of training save as well, and wait for the disk.

    The last `max_to_keep` are kept, one in every `keep_checkpoint_every_n_hours` forever, and the
    best by `keep_best`. The file `checkpoint` names the latest. Checkpoints of an earlier run that
    are still in the directory are not touched, unless this run resumed it. `var_collections` of
    `'trainable_variables'` saves only these.

    `filename` is a template of names, with `{epoch}`, `{step}` and scalars that were logged before
    the save, at the same step. A save without such a value (of another interval, or because of
    SIGTERM) is named `model-<step>`. A name that another step has already gets `-<step>` appended.

    >>> from towerpack import KeepBest
    >>> saver = ModelSaver(3, every="10 min", keep_best=KeepBest("validation_error"))
    >>> saver = ModelSaver(filename="{epoch}-{validation_error:.3f}")
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
        filename: str | None = None,
    ):
        super().__init__(checkpoint_dir)
        self.template = None if filename is None else NameTemplate(filename)
        self.keep = Keep(max_to_keep, keep_checkpoint_every_n_hours, keep_best)
        collections = name_list(var_collections or "variables")
        if not set(collections) <= set(_COLLECTIONS):
            raise ValueError(f"expected var_collections of {_COLLECTIONS}, received {collections}")
        self.only_trainable = "variables" not in collections
        self._interval = interval_of(every or "1 epoch")
        self._began = time.time()

    def _setup_graph(self) -> None:
        self._restored: list[str] | None = None
        self._kept: list[Saved] = []
        self._step: int | None = None  # of the last save, by this run or the one that it resumes
        self._last: str | None = None  # name of the last checkpoint that this run began to write

    def _before_train(self) -> None:
        super()._before_train()
        self._interval.start(self.trainer)
        if self._restored is not None:
            self._step = self.global_step
            names = dict.fromkeys([*self._restored, f"{PREFIX}-{self._step}"])
            self._kept = [saved for name in names if (saved := self._found(name)) is not None]

    def _next_due(self) -> int | None:
        return self._interval.next_step(self.global_step + 1)

    def _trigger_step(self) -> None:
        if self._interval.triggers_after_step(self.trainer):
            self.trigger()

    def _trigger_epoch(self) -> None:
        due = self._interval.triggers_after_epoch(self.trainer)
        if due or self.epoch_num == self.trainer.max_epoch:
            self.trigger()

    def _trigger(self) -> None:
        self.trainer.when_settled(self._check_and_save)

    def _interrupted(self) -> None:
        self._save()
        self.saver.wait()

    def _check_and_save(self) -> None:
        if self.template is not None:
            for name in self.template.scalars:
                try:
                    self.trainer.monitors.get_history(name)
                except KeyError as error:
                    raise ValueError(
                        f"{self} cannot name a checkpoint by {self.template.text!r}: "
                        f"{error.args[0]}. A scalar must be logged before the first save: save "
                        "more rarely by every=, or choose a scalar that is there"
                    ) from None
        self._save()

    def _save(self) -> None:
        if self._step == self.global_step:
            return  # requested twice at the same step
        self.saver.wait()  # the state below includes the result of that write
        step, monitored = self.global_step, {}
        if self.keep.best is not None:
            latest = latest_scalar(self, self.keep.best.stat)
            if latest is not None and latest[0] == step:
                monitored[self.keep.best.stat] = latest[1]
        name = self._name(monitored)
        self._step, self._last = step, name  # part of the state that is saved
        self.saver.save(
            self._directory / name,
            self._variables(),
            run=run_of(self.trainer),
            step=step,
            monitored=monitored,
            named=self.template is not None,
            then=lambda manifest: self._written(name, manifest),
        )

    def _name(self, monitored: dict[str, float]) -> str:
        """The name of the coming checkpoint; adds the scalars in it to those monitored."""
        usual = f"{PREFIX}-{self.global_step}"
        if self.template is None:
            return usual
        values: dict[str, float] = {"epoch": self.epoch_num, "step": self.global_step}
        for stat in self.template.scalars:
            history: list[tuple[int, float]] = []
            with suppress(KeyError):  # an early end of training: nothing was logged yet
                history = self.trainer.monitors.get_history(stat)
            if not history or history[-1][0] != self.global_step:
                logger.info("%s: %s was not logged at this step; saving as %s", self, stat, usual)
                return usual
            values[stat] = monitored[stat] = history[-1][1]
        name = self.template.fill(values)
        if files_of(prefix := self._directory / name) and step_of(prefix) != self.global_step:
            own = f"{name}-{self.global_step}"
            logger.warning(
                "%s: %s is another checkpoint, which stays; saving as %s", self, name, own
            )
            return own
        return name

    def _variables(self) -> dict[str, Any]:
        store = self.trainer.store
        return store.trainable() if self.only_trainable else store.saved()

    def _written(self, name: str, manifest: Manifest) -> None:
        """Makes a complete checkpoint the latest. Runs in the writing thread."""
        everything = [old for old in self._kept if old.name != name]
        everything.append(self._saved(name, manifest))
        outdated = self.keep.outdated(everything, self._began)
        self._kept = [each for each in everything if each not in outdated]
        write_state(self._directory, [each.name for each in self._kept])
        for old in outdated:  # only now, when nothing refers to them anymore
            remove_checkpoint(self._directory / old.name)

    def _saved(self, name: str, manifest: Manifest) -> Saved:
        best = self.keep.best
        return Saved(name, manifest.saved_at, manifest.monitored.get(best.stat) if best else None)

    def _found(self, name: str) -> Saved | None:
        """A checkpoint that the resumed run had kept; None if it is gone."""
        prefix = self._directory / name
        if not files_of(prefix):
            return None
        try:
            return self._saved(name, Manifest.read(f"{prefix}{MANIFEST_SUFFIX}"))
        except (CorruptCheckpoint, FileNotFoundError):
            return Saved(name, saved_at=0.0)  # damaged: the first to be removed

    def _state(self) -> dict[str, Any]:
        names = [each.name for each in self._kept]
        if self._last is not None:  # it may not be complete yet; if it fails, it is not found
            names = list(dict.fromkeys([*names, self._last]))
        return {"kept": names, "began": self._began}

    def _restore(self, state: dict[str, Any]) -> None:
        self._restored, self._began = state["kept"], state["began"]


def run_of(trainer: TrainerView) -> dict[str, Any]:
    """What a checkpoint stores besides the variables: the state of the run and facts about it."""
    limits = {"steps_per_epoch": trainer.steps_per_epoch, "max_epoch": trainer.max_epoch}
    config = {**trainer.configuration(), **limits}
    own = {"towerpack": __version__, "python": platform.python_version()}
    packages = {**own, **versions(_PACKAGES)}
    return {"format": 1, "state": trainer.state(), "config": config, "versions": packages}


class MinSaver(Saver):
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
        super().__init__(checkpoint_dir)
        self.monitor_stat, self.reverse, self.ema = monitor_stat, reverse, ema
        kind = "max" if reverse else "min"
        self.filename = filename or f"{kind}-{monitor_stat.replace('/', '-')}"
        self._best: float | None = None
        self._seen: tuple[int, float] | None = None  # step and value of the last check

    def _before_train(self) -> None:
        super()._before_train()
        # If the process was killed between the run's checkpoint and this one, save it now, with
        # the same weights.
        if self._seen is not None and self._seen[0] == self.global_step:
            self._save_if_better(*self._seen)

    def _trigger(self) -> None:
        self.trainer.when_settled(self._check)

    def _check(self) -> None:
        latest = latest_scalar(self, self.monitor_stat)
        if latest is None or latest == self._seen:
            return
        self._seen = latest
        self._save_if_better(*latest)

    def _save_if_better(self, step: int, value: float) -> None:
        if self._best is not None:
            better = value > self._best if self.reverse else value < self._best
        else:
            better = not math.isnan(value)
        if not better:
            return
        if step != self.global_step:
            logger.warning(
                f"{self} cannot save the best model: {self.monitor_stat} was logged at step {step},"
                f" and the weights have changed up to step {self.global_step}. Trigger the saver "
                "whenever the scalar is logged."
            )
            return
        self._best = value
        variables = self.trainer.store.saved()
        run = run_of(self.trainer) if self.ema is None else None
        if self.ema is not None:
            variables = {name: v for name, v in variables.items() if not is_average(name)}
        # Swapped until the values are copied; a thread writes the copies.
        with nullcontext() if self.ema is None else self.ema.swapped():
            self.saver.save(
                self._directory / self.filename,
                variables,
                run=run,
                step=step,
                monitored={self.monitor_stat: value},
            )
        message = "%s = %.5g is the best so far: saved as %s"
        logger.info(message, self.monitor_stat, value, self.filename)

    def _state(self) -> dict[str, Any]:
        """Includes what was logged so far, since this save may precede the next check."""
        seen = self._seen
        with suppress(KeyError):
            seen = self.trainer.monitors.get_history(self.monitor_stat)[-1]
        return {"best": self._best, "seen": list(seen) if seen else None}

    def _restore(self, state: dict[str, Any]) -> None:
        self._best = state["best"]
        self._seen = tuple(state["seen"]) if state["seen"] else None


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

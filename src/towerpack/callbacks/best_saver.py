"""Saving the best model so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.callbacks.ema import EMA, is_average
from towerpack.callbacks.saver import check_variables, directory_for, run_of
from towerpack.checkpoint.background import BackgroundSaver
from towerpack.core import logger


class MinSaver(Callback):
    """Saves the run as `min-<stat>` whenever the scalar `monitor_stat` is lower than ever before.

    It looks at what was logged at the current step, wherever in the list of callbacks that came
    from, and saves by itself, in a thread: a `ModelSaver` is not needed. The best value survives a
    restart. `reverse=True` saves the highest, as `MaxSaver` does. NaN is never the best.

    With an `ema` the checkpoint holds the averages in the place of the weights, for use and not to
    be resumed: for the scalar of an `InferenceRunner` with the same `ema`.

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
        self._seen: tuple[int, float] | None = None  # step and value last looked at

    def _before_train(self) -> None:
        self._directory = directory_for(self, self.checkpoint_dir)
        check_variables(self)
        self.saver.open(self._directory)
        # Killed between the run's checkpoint and this one: it is made up for now, with the same
        # weights.
        if self._seen is not None and self._seen[0] == self.global_step:
            self._save_if_better(self._seen[1])

    def _trigger(self) -> None:
        self.trainer.when_settled(self._look)

    def _look(self) -> None:
        latest = self._latest()
        if latest is None or latest == self._seen:
            return
        self._seen = latest
        step, value = latest
        if step != self.global_step:
            if self._is_better(value):
                logger.warning(
                    "%s: %s was logged at step %d, but now it is %d: the weights that it measured "
                    "are gone. Trigger it whenever the scalar is logged.",
                    self,
                    self.monitor_stat,
                    step,
                    self.global_step,
                )
            return
        self._save_if_better(value)

    def _latest(self) -> tuple[int, float] | None:
        try:
            return self.trainer.monitors.get_history(self.monitor_stat)[-1]
        except KeyError as error:
            logger.warning("%s: %s", self, error.args[0])
            return None

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
            with self.ema.swapped():  # until they are copied; a thread writes them
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
        """With what was logged by now, though its turn to look may come after this save."""
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

    Otherwise it is `MinSaver`.
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

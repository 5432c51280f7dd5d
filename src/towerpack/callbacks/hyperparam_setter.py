"""Changing hyperparameters while training runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.callbacks.base import Callback
from towerpack.callbacks.hyperparam import HyperParam, as_param
from towerpack.core import logger


class HyperParamSetter(Callback):
    """Sets a hyperparameter before training and at each trigger, on all workers.

    A subclass says which value (`_get_value_to_set`); None leaves it as it is. At each trigger the
    monitors get, under the parameter's name, the value that the last step has used: the curve shows
    the value of an epoch at its end, and a value that is set there in the next epoch.
    """

    chief_only = False
    # Whether a change in the middle of an epoch is logged; the steps of a smooth schedule are not.
    says_each_change = True

    def __init__(self, param: str | HyperParam):
        self.param = as_param(param)
        self._replaced: tuple[int, Any] = (-1, None)  # after which step, and the value before

    def _setup_graph(self) -> None:
        self.param.setup_graph(self.trainer)

    def _before_train(self) -> None:
        self._set_param()

    def _trigger(self) -> None:
        self._put_used_value()
        self._set_param()

    def _put_used_value(self) -> None:
        step, before = self._replaced
        value = before if step == self.global_step else self.get_current_value()
        if np.ndim(value) == 0:
            self.trainer.monitors.put_scalar(self.param.readable_name, float(value))

    def get_value_to_set(self) -> Any:
        """The value to be set now; None for no change."""
        return self._get_value_to_set()

    def _get_value_to_set(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define _get_value_to_set()")

    def get_current_value(self) -> Any:
        return self.param.get_value()

    def _set_param(self) -> None:
        value = self.get_value_to_set()
        if value is None:  # and not `if value`: 0 is a value
            return
        before = self.get_current_value()
        if self._replaced[0] != self.global_step:
            self._replaced = (self.global_step, before)
        self.param.set_value(value)
        changed = np.any(np.asarray(before) != np.asarray(self.get_current_value()))
        within_epoch = 0 <= self.local_step < self.trainer.steps_per_epoch - 1
        if changed and (self.says_each_change or not within_epoch):
            logger.info(
                "%s is changed from %s to %s at step %d",
                self.param,
                _in_short(before),
                _in_short(value),
                self.global_step,
            )


def _in_short(value: Any) -> str:
    """Numbers without what a variable of 32 bits adds to them: 0.4, not 0.4000000059604645."""
    return f"{value:.7g}" if np.ndim(value) == 0 else str(value)


class HumanHyperParamSetter(HyperParamSetter):
    """Takes the value from a text file that may be edited while training runs.

    Lines are `name:value`; others may be there for other setters. The file is read at each trigger;
    one that is not there, has no such line, or cannot be read as a number changes nothing (the last
    is logged). By default it is `hyper.txt` in the run's directory.

    >>> hand = HumanHyperParamSetter("learning_rate")
    """

    def __init__(self, param: str | HyperParam, file_name: str | Path = "hyper.txt"):
        super().__init__(param)
        self.file_name = Path(file_name)

    @property
    def path(self) -> Path:
        directory = logger.get_logger_dir()
        return Path(directory, self.file_name) if directory else self.file_name

    def _before_train(self) -> None:
        logger.info("%s can be changed by a line %s:<value> in %s", *[self.param] * 2, self.path)
        super()._before_train()

    def _get_value_to_set(self) -> Any:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        for line in lines:
            name, separator, text = line.rpartition(":")
            if separator and name.strip() == self.param.readable_name:
                return self._number(text.strip())
        return None

    def _number(self, text: str) -> int | float | None:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        logger.warning("%s: expected a number for %s, received %r", self.path, self.param, text)
        return None


class HyperParamSetterWithFunc(HyperParamSetter):
    """Sets what `func(epochs finished, value now)` returns, before training and at each trigger.

    Inside `PeriodicTrigger(..., every_k_steps=k)` it is called between epochs too, with a fraction:
    2.5 in the middle of the third epoch. A restart does not call it again for where it stopped, so
    that `lambda epochs, old: old * 0.9` is right in a resumed run.

    >>> from towerpack.callbacks import cosine
    >>> setter = HyperParamSetterWithFunc("learning_rate", cosine(0.1, total=90, warmup=5))
    """

    says_each_change = False

    def __init__(self, param: str | HyperParam, func: Callable[[float, Any], Any]):
        super().__init__(param)
        if not callable(func):
            raise TypeError(f"expected a function of (epochs, value), received {func!r}")
        self.func = func
        self._restored_at: int | None = None

    def _setup_graph(self) -> None:
        super()._setup_graph()
        self._restored_at = None

    def _before_train(self) -> None:
        # Of epochs the complete ones: a run may go on in the middle of one.
        self._epochs: float = self.trainer.starting_epoch - 1
        if self._restored_at != self.global_step:
            self._set_param()
        self._restored_at = None

    def _trigger(self) -> None:
        done = (self.local_step + 1) / self.trainer.steps_per_epoch
        self._epochs = self.epoch_num if done >= 1 else self.epoch_num - 1 + done
        super()._trigger()

    def _get_value_to_set(self) -> Any:
        return self.func(self._epochs, self.get_current_value())

    def _state(self) -> int:
        return self.global_step

    def _restore(self, state: int) -> None:
        self._restored_at = state


class StatMonitorParamSetter(HyperParamSetter):
    """Changes the value by `value_func(value now)` when a scalar has stopped to improve.

    At each trigger the latest value of `stat` is one observation (a trigger without a new one is
    none). When there are `last_k` and the smallest of them is not smaller than the first by more
    than `threshold` (with `reverse=True`, the largest not larger), the value is changed and
    observation begins anew. Not before training. The observations survive a restart.

    >>> drop = StatMonitorParamSetter(
    ...     "learning_rate", "validation_error", lambda rate: rate * 0.2, threshold=0.001, last_k=10
    ... )
    """

    def __init__(
        self,
        param: str | HyperParam,
        stat_name: str,
        value_func: Callable[[Any], Any],
        threshold: float,
        last_k: int,
        reverse: bool = False,
    ):
        super().__init__(param)
        if last_k < 2:
            raise ValueError(f"expected last_k of at least 2, received {last_k}")
        self.stat_name, self.value_func = stat_name, value_func
        self.threshold, self.last_k, self.reverse = float(threshold), last_k, reverse
        self._observed: deque[tuple[int, float]] = deque(maxlen=last_k)
        self._seen = -1

    def _setup_graph(self) -> None:
        super()._setup_graph()
        self._observed.clear()
        self._seen = -1

    def _before_train(self) -> None: ...

    def _get_value_to_set(self) -> Any:
        try:
            step, value = self.trainer.monitors.get_history(self.stat_name)[-1]
        except KeyError as error:
            logger.warning("StatMonitorParamSetter: %s", error.args[0])
            return None
        if step <= self._seen:
            logger.warning(
                "StatMonitorParamSetter was triggered, but nothing new was put as %r",
                self.stat_name,
            )
            return None
        self._seen = step
        self._observed.append((step, value))
        if len(self._observed) < self.last_k or self._improved():
            return None
        self._observed.clear()
        return self.value_func(self.get_current_value())

    def _improved(self) -> bool:
        values = [value for _, value in self._observed]
        if self.reverse:
            return max(values) > values[0] + self.threshold
        return min(values) < values[0] - self.threshold

    def _state(self) -> dict[str, Any]:
        return {"observed": [list(pair) for pair in self._observed], "seen": self._seen}

    def _restore(self, state: dict[str, Any]) -> None:
        self._observed.clear()
        self._observed.extend((step, value) for step, value in state["observed"])
        self._seen = state["seen"]

"""Hyperparameters, and callbacks that change them while training runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.callbacks.base import Callback, TrainerView, latest_scalar
from towerpack.core import logger
from towerpack.core.similar import nearest_first
from towerpack.tower import VariableStore


class HyperParam:
    """A value that callbacks may read and set.

    `readable_name` is its name in logs, monitors and `hyper.txt`.
    """

    readable_name: str

    def setup_graph(self, trainer: TrainerView) -> None:
        """Called once, when the model has been built."""

    def get_value(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define get_value()")

    def set_value(self, value: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define set_value()")

    def __str__(self) -> str:
        return self.readable_name


class GraphVarParam(HyperParam):
    """A variable of the model or its optimizer, by name.

    The name is the one in the store, or its last part if that is unique: `learning_rate` finds
    `learning_rate` as well as the `adam/learning_rate` of a Keras optimizer. A new value takes
    effect with the next step, without a new trace.

    >>> rate = GraphVarParam("learning_rate")
    """

    def __init__(self, name: str, shape: tuple[int, ...] = ()):
        self.name = name.removesuffix(":0")
        self.shape = tuple(shape)
        self.readable_name = self.name

    def setup_graph(self, trainer: TrainerView) -> None:
        self.var = self._find(trainer.store)
        if tuple(self.var.shape) != self.shape:
            raise ValueError(
                f"expected the variable {self.name!r} to have shape {self.shape}, received "
                f"{tuple(self.var.shape)}; pass its shape to GraphVarParam"
            )

    def _find(self, store: VariableStore) -> Any:
        variables = store.variables
        if self.name in variables:
            return variables[self.name]
        ending = [name for name in variables if name.endswith(f"/{self.name}")]
        if len(ending) == 1:
            return variables[ending[0]]
        if ending:
            raise ValueError(f"several variables end in {self.name!r}; pass one of {ending}")
        settable = [n for n, v in store.saved().items() if tuple(v.shape) == self.shape]
        hint = f"; variables of shape {self.shape} are {nearest_first(self.name, settable)}"
        if self.name == "learning_rate":
            hint += (
                "; an optimizer of tf.compat.v1.train hides a plain number: pass it a variable, "
                "tf.compat.v1.get_variable('learning_rate', initializer=0.1, trainable=False)"
            )
        raise KeyError(f"no variable is named {self.name!r}{hint}")

    def get_value(self) -> Any:
        return self.var.numpy().item() if not self.shape else self.var.numpy()

    def set_value(self, value: Any) -> None:
        array = np.asarray(value)
        if self.var.dtype.is_integer and array.dtype.kind not in "iub":
            raise ValueError(f"expected an integer for {self.name!r}, received {value!r}")
        self.var.assign(array.astype(self.var.dtype.as_numpy_dtype))


class ObjAttrParam(HyperParam):
    """An attribute of any object: of a callback, a dataflow, a Keras optimizer.

    The `learning_rate` of a Keras optimizer is backed by a variable, so setting it affects the
    traced step. A plain attribute takes effect where Python reads it.

    >>> import types
    >>> param = ObjAttrParam(types.SimpleNamespace(rate=0.5), "rate")
    >>> param.set_value(0.25)
    >>> param.get_value()
    0.25
    """

    def __init__(self, obj: Any, attrname: str, readable_name: str | None = None):
        getattr(obj, attrname)  # raises now if there is no such attribute
        self.obj, self.attrname = obj, attrname
        self.readable_name = readable_name or attrname

    def get_value(self) -> Any:
        value = getattr(self.obj, self.attrname)
        return np.asarray(value.numpy()).item() if hasattr(value, "numpy") else value

    def set_value(self, value: Any) -> None:
        setattr(self.obj, self.attrname, value)


def as_param(param: str | HyperParam) -> HyperParam:
    """A hyperparameter; a name stands for the variable of that name."""
    if isinstance(param, str):
        return GraphVarParam(param)
    if not isinstance(param, HyperParam):
        raise TypeError(f"expected a HyperParam or the name of a variable, received {param!r}")
    return param


class HyperParamSetter(Callback):
    """Sets a hyperparameter before training and at each trigger, on all workers.

    A subclass returns the value (`_get_value_to_set`); None leaves it unchanged. Of several ranks
    the chief decides, and all set its value. At each trigger
    the monitors get, under the parameter's name, the value that the last step used: the curve shows
    the value of an epoch at its end, and a value that is set there appears in the next epoch.
    """

    chief_only = False
    # Whether every rank finds the same value, so that the chief need not send it.
    same_on_all_ranks = False
    # Whether changes within an epoch are logged. Those of a smooth schedule are too many.
    logs_each_change = True

    def __init__(self, param: str | HyperParam):
        self.param = as_param(param)
        # The step of the last change, and the value before it.
        self._replaced: tuple[int, Any] = (-1, None)

    def _setup_graph(self) -> None:
        self.param.setup_graph(self.trainer)

    def _before_train(self) -> None:
        self._set_param()

    def _trigger(self) -> None:
        step, before = self._replaced
        used = before if step == self.global_step else self.get_current_value()
        if np.ndim(used) == 0:
            self.trainer.monitors.put_scalar(self.param.readable_name, float(used))
        self._set_param()

    def _get_value_to_set(self) -> Any:
        """The value to set now; None for no change."""
        raise NotImplementedError(f"{type(self).__name__} must define _get_value_to_set()")

    def get_current_value(self) -> Any:
        return self.param.get_value()

    def _decided(self) -> Any:
        ranks = self.trainer.ranks
        if ranks.size == 1 or self.chief_only or self.same_on_all_ranks:
            return self._get_value_to_set()
        value = self._get_value_to_set() if ranks.is_chief else None
        sent = None if value is None else np.asarray(value).tolist()
        return ranks.from_chief(sent, what=f"the value of {self.param}")

    def _set_param(self) -> None:
        value = self._decided()
        if value is None:  # not `if not value`: 0 is a value
            return
        before = self.get_current_value()
        if self._replaced[0] != self.global_step:
            self._replaced = (self.global_step, before)
        self.param.set_value(value)
        changed = np.any(np.not_equal(before, self.get_current_value()))
        within_epoch = 0 <= self.local_step < self.trainer.steps_per_epoch - 1
        if changed and (self.logs_each_change or not within_epoch):
            # Without the digits that float32 adds: 0.4, not 0.4000000059604645.
            short = [f"{x:.7g}" if np.ndim(x) == 0 else str(x) for x in (before, value)]
            logger.info("%s changes from %s to %s at step %d", self.param, *short, self.global_step)


class HumanHyperParamSetter(HyperParamSetter):
    """Reads the value from a text file that may be edited while training runs.

    Lines are `name:value`, and other setters may use the same file. It is read at each trigger. If
    it is missing or has no such line, nothing changes; a value that is not a number is logged and
    ignored. By default it is `hyper.txt` in the run's directory.

    >>> hand = HumanHyperParamSetter("learning_rate")
    """

    def __init__(self, param: str | HyperParam, file_name: str | Path = "hyper.txt"):
        super().__init__(param)
        self.file_name = Path(file_name)

    def _before_train(self) -> None:
        self.path = Path(logger.get_logger_dir() or "", self.file_name)
        if self.trainer.is_chief:  # which alone reads it
            message = "to change %s, write the line %s:<value> to %s"
            logger.info(message, self.param, self.param, self.path)
        super()._before_train()

    def _get_value_to_set(self) -> Any:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        for line in lines:
            name, _, text = line.rpartition(":")
            if name.strip() != self.param.readable_name:
                continue
            text = text.strip()
            try:
                return int(text) if text.lstrip("+-").isdecimal() else float(text)
            except ValueError:
                message = "%s: expected a number for %s, received %r"
                logger.warning(message, self.path, self.param, text)
                break
        return None


class HyperParamSetterWithFunc(HyperParamSetter):
    """Sets what `func(epochs finished, value now)` returns, before training and at each trigger.

    Inside `PeriodicTrigger(..., every_k_steps=k)` it is also called within epochs, with a fraction:
    2.5 in the middle of the third epoch. A restart does not call it again for the step where the
    run stopped, so that `lambda epochs, old: old * 0.9` is right in a resumed run.

    >>> from towerpack.callbacks import cosine
    >>> setter = HyperParamSetterWithFunc("learning_rate", cosine(0.1, total=90, warmup=5))
    """

    logs_each_change = False

    def __init__(self, param: str | HyperParam, func: Callable[[float, Any], Any]):
        super().__init__(param)
        self.func = func

    def _setup_graph(self) -> None:
        super()._setup_graph()
        self._restored_at: int | None = None

    def _before_train(self) -> None:
        # Only complete epochs count: a run may resume in the middle of one.
        self._epochs: float = self.trainer.starting_epoch - 1
        if self._restored_at != self.global_step:
            self._set_param()

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
    """Sets `value_func(value now)` when a scalar has stopped improving.

    At each trigger, a new value of the scalar `stat_name` is one observation. When there are
    `last_k` observations and the smallest is not smaller than the first by more than `threshold`
    (with `reverse=True`, the largest not larger), the value is set and observation starts over.
    Nothing is set before training. The observations survive a restart.

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

    def _setup_graph(self) -> None:
        super()._setup_graph()
        self._observed = deque[tuple[int, float]](maxlen=self.last_k)
        self._seen = -1

    def _before_train(self) -> None: ...

    def _get_value_to_set(self) -> Any:
        latest = latest_scalar(self, self.stat_name)
        if latest is None or latest[0] <= self._seen:
            return None
        self._seen = latest[0]
        self._observed.append(latest)
        values = [value if self.reverse else -value for _, value in self._observed]
        if len(values) < self.last_k or max(values) > values[0] + self.threshold:
            return None
        self._observed.clear()
        return self.value_func(self.get_current_value())

    def _state(self) -> dict[str, Any]:
        return {"observed": [list(pair) for pair in self._observed], "seen": self._seen}

    def _restore(self, state: dict[str, Any]) -> None:
        self._observed.extend((step, value) for step, value in state["observed"])
        self._seen = state["seen"]

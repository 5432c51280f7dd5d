"""Keras callbacks in a run of towerpack: their events, what Keras logs, and their states."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, StopTraining
from towerpack.core import logger
from towerpack.keras.tower import KerasTower
from towerpack.keras.validation import Validation

keras = tf.keras
kc = keras.callbacks

BATCH_EVENTS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
KERAS_NAMES = ("loss", "val_")  # how fit logs the loss, and the prefix of validation
TOWERPACK_NAMES = ("total_loss", "validation_")


class KerasEvents(Callback):
    """Drives Keras callbacks: the events of `fit`, in its order and with its logs.

    Steps run fused unless a callback acts on every batch. A checkpoint has the metrics within the
    epoch, the weights of `EarlyStopping(restore_best_weights=True)`, and every attribute of a Keras
    callback that training has changed, if it is made of numbers, text, lists and dicts.
    """

    def __init__(
        self,
        tower: KerasTower,
        callbacks: Sequence[Any] = (),
        validation: Validation | None = None,
        names: tuple[str, str] = KERAS_NAMES,
        *,
        validates: Any = lambda epoch: True,  # whether the validation runs after an epoch
        verbose: int = 0,
        epochs: int = 1,
        steps: int | None = None,
    ):
        self.tower, self.validation, self.validates = tower, validation, validates
        self.loss_name, self.prefix = names
        self.model = tower.model
        self.list = kc.CallbackList(
            list(callbacks),
            add_history=True,
            add_progbar=verbose != 0,
            model=self.model,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )
        self._on_batches = any(map(acts_on_batches, self.list.callbacks))
        self._bars = [cb for cb in self.list.callbacks if isinstance(cb, kc.ProgbarLogger)]
        self._begun = self._within_epoch = self._stopped = False
        self._restored: dict[str, Any] = {}
        self._logs: dict[str, Any] | None = None
        self._keep_best_weights()

    def _keep_best_weights(self) -> None:
        """Makes room in the checkpoint, on every rank, for the weights of `EarlyStopping`."""
        self._best = {}
        for number, callback in enumerate(self.list.callbacks):
            if isinstance(callback, kc.EarlyStopping) and callback.restore_best_weights:
                self._best[callback] = [
                    self.tower.trainer.store.make(
                        f"best_weights_{number}/{weight.path}",
                        functools.partial(tf.zeros, weight.shape, weight.dtype),
                        trainable=False,
                    )
                    for weight in self.model.weights
                ]

    def _before_train(self) -> None:
        self._begun, self.model.stop_training = True, False
        for callback in self.list.callbacks:
            if self._restored and isinstance(callback, kc.CSVLogger):
                callback.append = True
        self.list.on_train_begin()
        self._at_begin = [changeable(callback) for callback in self.list.callbacks]
        self._restore_callbacks()

    def _before_epoch(self) -> None:
        if self._stopped:
            raise StopTraining("a Keras callback had stopped this run")
        if self.local_step < 0 or not self._restored.get("metrics"):
            self.tower.reset_metrics()
        self._within_epoch = True
        self.list.on_epoch_begin(self.epoch_num - 1)
        self._begin_batch()

    def _begin_batch(self) -> None:
        if self._on_batches:
            self.list.on_train_batch_begin(self.local_step + 1)

    def _next_due(self) -> int | None:
        """The step after which callbacks of batches act; fewer with `steps_per_execution`."""
        if not self._on_batches:
            return None
        size = int(self.model.steps_per_execution)
        last = (self.local_step + 1) // size * size + size - 1
        return self.global_step + min(last, self.trainer.steps_per_epoch - 1) - self.local_step

    def _trigger_step(self) -> None:
        if not self._on_batches:
            for bar in self._bars:  # without logs, since reading them would wait for the step
                bar.on_train_batch_end(self.local_step)
            return
        left = self.trainer.steps_per_epoch - 1 - self.local_step
        size = int(self.model.steps_per_execution)
        if left and (self.local_step + 1) % size:
            return
        # Keras counts as if the last execution of an epoch were complete.
        number = self.local_step // size * size + size - 1
        self.list.on_train_batch_end(number, self.tower.results())
        if left and self.model.stop_training:
            self.end_epoch()
            self._stop()
        elif left:
            self._begin_batch()

    def _trigger(self) -> None:
        self.end_epoch()
        if self.model.stop_training:
            self._stop()

    def _stop(self) -> None:
        self._stopped = True
        raise StopTraining("a Keras callback has set model.stop_training")

    def end_epoch(self, put: bool = True) -> None:
        """What `fit` does after the last batch of an epoch; nothing if that is done.

        `put` is whether the monitors are open, to log what Keras logs.
        """
        if not self._within_epoch:
            return
        self._within_epoch = False
        logs = numbers(self.tower.results())
        if put:
            self._put(logs, "")
        if self.validation is not None and self.validates(self.epoch_num):
            found = numbers(self.validation.run(self.model, self.list))
            if put:
                self._put(found, self.prefix)
            logs |= {f"val_{name}": value for name, value in found.items()}
        self._logs = logs
        self.list.on_epoch_end(self.epoch_num - 1, logs)
        for callback, variables in self._best.items():
            for variable, value in zip(variables, callback.best_weights or (), strict=False):
                variable.assign(value)

    def _put(self, logs: Mapping[str, Any], prefix: str) -> None:
        for name, value in logs.items():
            if np.ndim(value) == 0:
                shown = self.loss_name if name == "loss" else name
                self.trainer.monitors.put_scalar(f"{prefix}{shown}", float(value))

    def terminate_on_nan(self, error: ArithmeticError) -> None:
        """Stops as `TerminateOnNaN` does, if it is there; otherwise raises what was found."""
        found = [cb for cb in self.list.callbacks if isinstance(cb, kc.TerminateOnNaN)]
        if not found:
            raise error
        if found[0].raise_error:
            raise RuntimeError("NaN or infinity: terminating training") from error
        logger.warning("terminating training: %s", error)
        self.model.stop_training = True

    def finish(self) -> None:
        """The end of training, after the optimizer has set the weights to their final values."""
        if self._begun:
            self.list.on_train_end(self._logs)

    def _state(self) -> dict[str, Any]:
        before = self._at_begin
        callbacks = [
            [name_of(callback), {k: v for k, v in changeable(callback).items() if old.get(k) != v}]
            for callback, old in zip(self.list.callbacks, before, strict=True)
        ]
        metrics = None
        if self._within_epoch:
            metrics = [np.asarray(v).tolist() for v in self.tower.metrics_variables()]
        return {"callbacks": callbacks, "metrics": metrics, "stopped": self._stopped}

    def _restore(self, state: dict[str, Any]) -> None:
        self._restored, self._stopped = state, state["stopped"]
        for variable, value in zip(
            self.tower.metrics_variables(), state["metrics"] or (), strict=False
        ):
            variable.assign(np.asarray(value, variable.dtype))

    def _restore_callbacks(self) -> None:
        saved = self._restored.get("callbacks", [])
        names = [name_of(callback) for callback in self.list.callbacks]
        if self._restored and names != [name for name, _ in saved]:
            logger.warning(
                "the states of Keras callbacks are not restored: expected %s, as in the run that "
                "is resumed, received %s",
                [name for name, _ in saved],
                names,
            )
            return
        for callback, (_, changed) in zip(self.list.callbacks, saved, strict=False):
            vars(callback).update(changed)
        for callback, variables in self._best.items():
            if getattr(callback, "best", None) is not None:
                callback.best_weights = [variable.numpy() for variable in variables]


def log_unfused(callbacks: Sequence[Any]) -> None:
    """Logs which Keras callbacks keep steps from running many in one call."""
    names = [name_of(callback) for callback in callbacks if acts_on_batches(callback)]
    if names:
        logger.info(
            "steps run one by one, not many in one call, because %s acts on every batch",
            ", ".join(names),
        )


def acts_on_batches(callback: Any) -> bool:
    """Whether a Keras callback must be called at every batch."""
    if isinstance(callback, kc.ProgbarLogger | kc.TerminateOnNaN):
        return False  # the bar is moved after each call; towerpack itself checks for NaN
    if type(callback) is kc.ModelCheckpoint:
        return bool(callback.save_freq != "epoch")
    if type(callback) is kc.TensorBoard:
        every = callback.update_freq != "epoch" or callback.write_steps_per_second
        return bool(every or getattr(callback, "_should_trace", True))
    return any(
        event in vars(callback) or getattr(type(callback), event) is not getattr(kc.Callback, event)
        for event in BATCH_EVENTS
    )


def separated(callbacks: Any) -> tuple[list[Callback], list[Any]]:
    """The callbacks of towerpack, and those of Keras."""
    given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    of_keras = [cb for cb in given if isinstance(cb, kc.Callback)]
    for callback in of_keras:
        if isinstance(callback, kc.BackupAndRestore):
            raise ValueError(
                "expected no BackupAndRestore: it keeps weights and epochs but not the order of "
                "the data. Pass logdir='directory', resume='auto' to towerpack.keras.fit instead"
            )
    return [cb for cb in given if not isinstance(cb, kc.Callback)], of_keras


def name_of(callback: Any) -> str:
    return type(callback).__name__


def numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Results of metrics as Python's numbers, or arrays."""
    arrays = {name: np.asarray(value) for name, value in logs.items()}
    return {name: a.item() if a.ndim == 0 else a for name, a in arrays.items()}


def changeable(callback: Any) -> dict[str, Any]:
    """The attributes of a callback that a checkpoint can store, as JSON has them."""
    found = {}
    for name, value in vars(callback).items():
        if name == "min_delta":  # Keras changes its sign when a run has its first epoch
            continue
        try:
            found[name] = plain(value)
        except TypeError:
            continue
    return found


def plain(value: Any) -> Any:
    """A copy of numbers, text, and lists and dicts of them; a TypeError for anything else."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(item) for key, item in value.items()}
    raise TypeError(f"expected numbers, text, lists or dicts, received {type(value).__name__}")

"""Callbacks that log, write or draw tensors of a step and outputs of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback, name_list, run_directory
from towerpack.callbacks.interval import last_step
from towerpack.core import logger
from towerpack.core.files import atomic_file

CHANNELS = (1, 3, 4)


class ProcessTensors(Callback):
    """Calls `fn` with the values of some tensors of the training tower, in every step.

    Steps therefore cannot be fused; inside `PeriodicCallback`, only those that pass run alone.

    >>> watch = ProcessTensors("cost", lambda cost: print(cost))
    """

    def __init__(self, names: str | Sequence[str], fn: Callable[..., Any]):
        self.names = name_list(names)
        if not self.names:
            raise ValueError("expected the name of at least one tensor, received none")
        self._function = fn

    def _before_run(self) -> Sequence[str] | None:
        return self.names

    def _after_run(self, values: list[Any] | None) -> None:
        self._function(*values or ())


class TensorPrinter(ProcessTensors):
    """Logs the values of tensors in every step, for debugging a small run."""

    def __init__(self, names: str | Sequence[str]):
        super().__init__(names, self._print)

    def _print(self, *values: Any) -> None:
        for name, value in zip(self.names, values, strict=True):
            logger.info("step %d: %s = %s", self.global_step, name, value)


class DumpTensors(ProcessTensors):
    """Writes tensors of every step to `DumpTensor-<step>.npz` in the run's directory.

    The arrays have the names of the tensors.
    """

    def __init__(self, names: str | Sequence[str]):
        super().__init__(names, self._dump)

    def _before_train(self) -> None:
        self._directory = run_directory(self)

    def _dump(self, *values: Any) -> None:
        arrays = dict(zip(self.names, values, strict=True))
        path = self._directory / f"DumpTensor-{self.global_step}.npz"
        with atomic_file(path, "wb") as file:
            np.savez(file, **arrays)


class DumpTensorAsImage(Callback):
    """Writes a variable, or a tensor of the training tower, as PNG files at each trigger.

    They are `<prefix>-ep<epoch>-<number>.png` in the run's directory; a trigger within an epoch
    adds `-step<step>` after the epoch. The value must be one picture or a list of them, HW or HWC;
    `map_func` may convert it. `scale` multiplies the values before they are clipped to 0..255. A
    tensor is fetched from the step before the trigger; no other step is observed.

    >>> weights = DumpTensorAsImage("conv0/W", map_func=lambda w: w[:, :, 0, :4].transpose(2, 0, 1))
    """

    fetches_for_trigger = True

    def __init__(
        self,
        tensor: str,
        prefix: str | None = None,
        map_func: Callable[[np.ndarray], Any] | None = None,
        scale: float = 255,
    ):
        self.tensor, self.map_func, self.scale = tensor, map_func, scale
        self.prefix = (prefix or tensor).replace("/", "-").replace(":", "-")

    def _setup_graph(self) -> None:
        self._value: Any = None
        self._is_variable = self.tensor in self.trainer.store

    def _before_train(self) -> None:
        self._directory = run_directory(self)

    def _next_due(self) -> int | None:
        return None if self._is_variable else last_step(self.trainer)

    def _before_run(self) -> Sequence[str] | None:
        return [self.tensor]

    def _after_run(self, values: list[Any] | None) -> None:
        (self._value,) = values or [None]

    def _trigger(self) -> None:
        if self._is_variable:
            self._value = self.trainer.store[self.tensor].numpy()
        if self._value is None:  # triggered before any step
            return
        within_epoch = self.local_step < self.trainer.steps_per_epoch - 1
        suffix = f"-step{self.global_step}" if within_epoch else ""
        value = self.map_func(self._value) if self.map_func else self._value
        for number, picture in enumerate(_pictures(self.tensor, value)):
            pixels = np.clip(picture * self.scale, 0, 255).astype(np.uint8)
            name = f"{self.prefix}-ep{self.epoch_num:03d}{suffix}-{number}.png"
            with atomic_file(self._directory / name, "wb") as file:
                file.write(tf.io.encode_png(pixels).numpy())


def _pictures(name: str, value: Any) -> list[np.ndarray]:
    """The value as a list of HWC pictures."""
    if isinstance(value, list | tuple):
        return [picture for part in value for picture in _pictures(name, part)]
    array = np.asarray(value, np.float32)
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] not in CHANNELS):
        array = array[..., None]
    pictures = array[None] if array.ndim == 3 else array
    if pictures.ndim != 4 or pictures.shape[3] not in CHANNELS:
        raise ValueError(
            f"expected a picture HW or HWC, or a list of them, received {name!r} of shape "
            f"{np.shape(value)}; pass a map_func that converts it"
        )
    return list(pictures)


class PredictionImages(Callback):
    """Logs pictures drawn from the model's outputs for a fixed batch, at each trigger.

    `batch` holds the arrays of the inputs `input_names` (by default all inputs of the tower).
    `draw` receives these and the outputs, as two lists, and returns a picture or a batch of them
    (HW, HWC or NHWC, 0..255); without it the first output is such a picture.

    >>> images = PredictionImages([np.zeros([4, 8, 8, 1], np.float32)], ["restored"], ["noisy"])
    """

    def __init__(
        self,
        batch: Sequence[Any],
        output_names: str | Sequence[str],
        input_names: Sequence[str] | None = None,
        draw: Callable[[list[np.ndarray], list[np.ndarray]], Any] | None = None,
        name: str = "predictions",
    ):
        self.batch = [np.asarray(component) for component in batch]
        self.output_names = name_list(output_names)
        self.input_names = None if input_names is None else list(input_names)
        self.draw, self.name = draw, name

    def _setup_graph(self) -> None:
        expected = self.input_names or self.trainer.tower_func.input_names
        if len(expected) != len(self.batch):
            raise ValueError(
                f"expected one array for each of the inputs {expected}, received {len(self.batch)}"
            )
        self._predict = self.trainer.get_predictor(self.input_names, self.output_names)

    def _trigger(self) -> None:
        outputs = [np.asarray(output) for output in self._predict(*self.batch)]
        picture = self.draw(self.batch, outputs) if self.draw else outputs[0]
        self.trainer.monitors.put_image(self.name, picture)

"""Tensors and variables as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback
from towerpack.callbacks.epoch_end import EpochEnd
from towerpack.callbacks.tensors import run_directory
from towerpack.core.files import atomic_file

CHANNELS = (1, 3, 4)


class DumpTensorAsImage(Callback):
    """Writes a variable, or a tensor of the training tower, as PNG files at each trigger.

    They are `<prefix>-ep<epoch>-<number>.png` in the run's directory, with `-step<step>` in between
    for those triggered within an epoch. The value is one picture or a
    list of them, HW or HWC; `map_func` makes it so. `scale` multiplies values before they are cut
    to 0..255. A tensor is that of the step that ends with the trigger; no other step is watched.

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
        self._end = EpochEnd()
        self._value: Any = None

    def _setup_graph(self) -> None:
        self._value = None
        self._is_variable = self.tensor in self.trainer.store

    def _before_train(self) -> None:
        self._directory = run_directory(self)

    def _next_due(self) -> int | None:
        return None if self._is_variable else self._end.step(self.trainer)

    def _before_run(self) -> Sequence[str] | None:
        return [self.tensor]

    def _after_run(self, values: list[Any] | None) -> None:
        (self._value,) = values or [None]

    def _trigger(self) -> None:
        if self._is_variable:
            self._value = self.trainer.store[self.tensor].numpy()
        if self._value is None:  # triggered before any step
            return
        in_the_middle = self.local_step < self.trainer.steps_per_epoch - 1
        within = f"-step{self.global_step}" if in_the_middle else ""
        value = self.map_func(self._value) if self.map_func else self._value
        for number, picture in enumerate(_pictures(self.tensor, value)):
            pixels = np.clip(picture * self.scale, 0, 255).astype(np.uint8)
            name = f"{self.prefix}-ep{self.epoch_num:03d}{within}-{number}.png"
            with atomic_file(self._directory / name, "wb") as file:
                file.write(tf.io.encode_png(pixels).numpy())


DumpParamAsImage = DumpTensorAsImage


def _pictures(name: str, value: Any) -> list[np.ndarray]:
    """The value as a list of HWC pictures."""
    if isinstance(value, list | tuple):
        return [picture for part in value for picture in _pictures(name, part)]
    array = np.asarray(value, np.float32)
    if array.ndim == 2:
        return [array[:, :, None]]
    if array.ndim == 3 and array.shape[2] in CHANNELS:
        return [array]
    if array.ndim == 3:  # pictures without channels
        return [picture[:, :, None] for picture in array]
    if array.ndim == 4 and array.shape[3] in CHANNELS:
        return list(array)
    raise ValueError(
        f"expected a picture HW or HWC, or a list of them, received {name!r} of shape "
        f"{array.shape}; give a map_func that makes it one"
    )

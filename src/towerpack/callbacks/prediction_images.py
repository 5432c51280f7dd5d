"""What the model makes of some fixed inputs, as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.callbacks.base import Callback


class PredictionImages(Callback):
    """Puts pictures drawn from the model's outputs for a fixed batch, at each trigger.

    `batch` are the arrays of the inputs `input_names` (all of the tower's by default). `draw` gets
    these and the outputs, as two lists, and returns a picture or a batch of them (HW, HWC or NHWC,
    0..255); without it the first output is such a picture.

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
        self.output_names = [output_names] if isinstance(output_names, str) else list(output_names)
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

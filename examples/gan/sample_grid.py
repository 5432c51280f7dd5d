"""A callback that draws what the generator makes of the same noise, time after time."""

from pathlib import Path

import numpy as np
from clothes import fixed_noise

from towerpack import Callback, logger
from towerpack.monitor.files import encode_png

ROWS, COLUMNS = 8, 12


class SampleGrid(Callback):
    """At each trigger a grid of pictures goes to the monitors, and to `samples-<step>.png`."""

    def __init__(self, output_name: str = "fake"):
        self.output_name = output_name

    def _setup_graph(self) -> None:
        self._generate = self.trainer.get_predictor(["z"], [self.output_name])

    def _trigger(self) -> None:
        (pictures,) = self._generate(fixed_noise(ROWS * COLUMNS))
        picture = grid(np.asarray(pictures))
        self.trainer.monitors.put_image("samples", picture)
        path = Path(logger.get_logger_dir(), f"samples-{self.global_step:06d}.png")
        path.write_bytes(encode_png(picture))


def grid(pictures: np.ndarray) -> np.ndarray:
    """Pictures from -1 to 1, [ROWS * COLUMNS, h, w, c], as one of bytes."""
    _, height, width, channels = pictures.shape
    rows = pictures.reshape(ROWS, COLUMNS, height, width, channels).transpose(0, 2, 1, 3, 4)
    whole = rows.reshape(ROWS * height, COLUMNS * width, channels)
    return np.clip((whole + 1) * 127.5, 0, 255).astype(np.uint8)

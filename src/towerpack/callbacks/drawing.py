"""Pictures for the monitors, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.core.optional import require

MAX_CELLS_WITH_NUMBERS = 20  # with more classes, numbers do not fit into the cells
DOTS_PER_INCH = 100


def confusion_picture(matrix: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """Rows are the real classes, columns the predicted ones; shades are shares of a row."""
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    size = float(np.clip(1.5 + 0.45 * len(labels), 4, 12))
    figure, axes = _figure(size, size)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("real")
    if len(labels) <= MAX_CELLS_WITH_NUMBERS:
        axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
        axes.set_yticks(range(len(labels)), labels)
        for (row, column), count in np.ndenumerate(matrix):
            colour = "white" if share[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, size=8)
    return _pixels(figure)


def curve_picture(
    x: np.ndarray,
    y: np.ndarray,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    mark: float | None = None,
) -> np.ndarray:
    """One curve; `mark` draws a vertical line."""
    figure, axes = _figure(5, 4)
    axes.plot(x, y)
    if log_x:
        axes.set_xscale("log")
    if mark is not None:
        axes.axvline(mark, linestyle="--", color="tab:red")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    return _pixels(figure)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    # pyplot would keep every figure and may open a window.
    module = require("matplotlib.figure", extra="tf")
    figure = module.Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="tight")
    return figure, figure.subplots()


def _pixels(figure: Any) -> np.ndarray:
    """The figure as HWC, uint8, RGB."""
    canvas = require("matplotlib.backends.backend_agg", extra="tf").FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()

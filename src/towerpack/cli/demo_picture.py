"""The picture of a demo run: its curves, and test digits with what the model says they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require

COLUMNS, ROWS = 10, 5
WRONG, RIGHT = "#c62828", "#2e7d32"
TRAINING, VALIDATION = "#1f77b4", "#ff7f0e"


def draw(
    path: str | Path,
    history: Sequence[dict[str, Any]],
    images: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
) -> None:
    """Writes the picture to `path`.

    The grid shows the digits that the model got wrong first, then the ones it was least sure of:
    those are worth looking at.
    """
    matplotlib = require("matplotlib", extra="tf")
    matplotlib.use("Agg")  # no window: this also runs where there is no screen
    figure_module = require("matplotlib.figure", extra="tf")

    figure = figure_module.Figure(figsize=(13, 6.2), layout="constrained")
    curves, grid = figure.subfigures(1, 2, width_ratios=[1, 2.1])
    _draw_curves(curves, history)
    _draw_digits(grid, images, labels, probabilities)
    figure.savefig(path, dpi=90)


def _draw_curves(figure: Any, history: Sequence[dict[str, Any]]) -> None:
    epochs = [record["epoch_num"] for record in history]
    loss, error = figure.subplots(2, 1, sharex=True)
    for axes, title, scale, names in [
        (loss, "loss", 1, ("cost", "validation_cost")),
        (error, "error, %", 100, ("train_error", "validation_error")),
    ]:
        for name, colour, label in zip(
            names, (TRAINING, VALIDATION), ("training", "validation"), strict=True
        ):
            values = [record[name] * scale for record in history]
            axes.plot(epochs, values, "o-", color=colour, label=label, markersize=3)
        axes.set_title(title, fontsize=11)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    loss.legend(fontsize=9)
    error.set_xlabel("epoch")
    error.set_xticks(epochs[:: max(1, len(epochs) // 8)])


def _draw_digits(
    figure: Any, images: np.ndarray, labels: np.ndarray, probabilities: np.ndarray
) -> None:
    predicted = probabilities.argmax(axis=1)
    wrong = predicted != labels
    confidence = probabilities.max(axis=1)
    chosen = np.lexsort([confidence, ~wrong])[: COLUMNS * ROWS]
    figure.suptitle(
        f"{wrong.sum()} of {len(labels)} test digits are wrong (red, predicted ≠ true); "
        "then the least certain ones",
        fontsize=11,
    )
    for axes, index in zip(figure.subplots(ROWS, COLUMNS).flat, chosen, strict=False):
        axes.imshow(images[index], cmap="gray_r", vmin=0, vmax=1)
        axes.set_xticks([])
        axes.set_yticks([])
        colour = WRONG if wrong[index] else RIGHT
        text = f"{predicted[index]} ≠ {labels[index]}" if wrong[index] else f"{predicted[index]}"
        axes.set_title(text, fontsize=11, color=colour, pad=3)
        for edge in axes.spines.values():
            edge.set_color(colour)
            edge.set_linewidth(2 if wrong[index] else 1)

"""The layers of a model as boxes and arrows, drawn by matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towerpack.core.optional import require
from towerpack.models.layer_graph import Node

FORMATS = (".png", ".svg", ".pdf")
LONGEST = 32  # characters of a name that fit into a box
SHORT = 12  # characters that fit into a small box, of an operation that joins layers
_WIDTH, _HEIGHT, _SMALL = 2.7, 0.5, 1.1  # of boxes in inches
_COLUMN, _ROW = 3.4, 0.85  # distances of boxes
_MOST_INCHES = 600  # a picture has at most 65,536 dots to a side
_COLOURS = {"input": "#dcebdd", "": "#dbe7f5", "join": "#f4e6cf"}


def draw_layers(nodes: Sequence[Node], path: str | Path) -> None:
    """Draws the boxes of a `ModelTable` to a PNG, SVG or PDF file, inputs at the top.

    A small box is an operation of the tower that joins several layers.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"expected a file name that ends in {FORMATS}, received {path.name!r}")
    if not nodes:
        raise ValueError("there is nothing to draw: the model has no layers in a graph")
    places = _places(nodes)
    xs, ys = [x for x, _ in places], [y for _, y in places]
    width, height = max(xs) - min(xs) + _COLUMN + 1, max(ys) + _HEIGHT + 0.5
    if height > _MOST_INCHES:
        raise ValueError(f"expected a model of at most 700 layers in a row, received {len(nodes)}")
    module = require("matplotlib.figure", extra="tf")
    figure = module.Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    left = min(xs) - _COLUMN / 2
    axes.set(xlim=(left, left + width), ylim=(height - 0.5, -0.5))
    axes.set_axis_off()
    for node, place in zip(nodes, places, strict=True):
        for before in node.inputs:
            _arrow(axes, places[before], place, _half(nodes[before]), _half(node))
        _box(axes, node, place)
    figure.savefig(path, dpi=100)


def _places(nodes: Sequence[Node]) -> list[tuple[float, float]]:
    """The middle of each box: below all of its inputs, and near them."""
    ranks: list[int] = []
    for node in nodes:
        ranks.append(1 + max((ranks[before] for before in node.inputs), default=-1))
    # An input stands right above the box that takes it.
    for number, node in enumerate(nodes):
        if not node.inputs:
            takers = [ranks[n] for n, other in enumerate(nodes) if number in other.inputs]
            ranks[number] = min(takers, default=1) - 1
    rows = defaultdict(list)
    for number, rank in enumerate(ranks):
        rows[rank].append(number)
    across = dict.fromkeys(range(len(nodes)), 0.0)
    for rank in sorted(rows):
        row = rows[rank]

        def wanted(number: int) -> float:
            inputs = nodes[number].inputs
            return sum(across[n] for n in inputs) / len(inputs) if inputs else float("inf")

        row.sort(key=wanted)
        for place, number in enumerate(row):
            across[number] = (place - (len(row) - 1) / 2) * _COLUMN
    return [(across[number], rank * _ROW) for number, rank in enumerate(ranks)]


def _half(node: Node) -> float:
    return (_WIDTH if node.name or len(_join_text(node)) > SHORT else _SMALL) / 2


def _join_text(node: Node) -> str:
    return node.kind.removesuffix("V2")


def _box(axes: Any, node: Node, place: tuple[float, float]) -> None:
    patches = require("matplotlib.patches", extra="tf")
    (x, y), half = place, _half(node)
    colour = _COLOURS.get(node.kind if node.name else "join", _COLOURS[""])
    style = "round,pad=0,rounding_size=0.08"
    corner = (x - half, y - _HEIGHT / 2)
    axes.add_patch(
        patches.FancyBboxPatch(
            corner, 2 * half, _HEIGHT, boxstyle=style, facecolor=colour, edgecolor="#556", zorder=2
        )
    )
    if not node.name:
        axes.text(x, y, _join_text(node), ha="center", va="center", size=8, zorder=3)
        return
    name = node.name if len(node.name) <= LONGEST else f"…{node.name[1 - LONGEST :]}"
    axes.text(x, y - 0.1, name, ha="center", va="center", size=9, weight="bold", zorder=3)
    details = f"{node.kind} {node.output}"
    axes.text(x, y + 0.12, details[:42], ha="center", va="center", size=7.5, zorder=3)


def _arrow(
    axes: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    start_half: float,
    end_half: float,
) -> None:
    """From the lower edge to the upper edge; around the boxes between if there are any."""
    patches = require("matplotlib.patches", extra="tf")
    path = require("matplotlib.path", extra="tf").Path
    (x0, y0), (x1, y1) = start, end
    if y1 - y0 < 1.5 * _ROW:
        points = [(x0, y0 + _HEIGHT / 2), (x1, y1 - _HEIGHT / 2)]
        codes = [path.MOVETO, path.LINETO]
    else:
        outside = max(x0, x1) + _WIDTH / 2 + 0.6
        points = [(x0 + start_half, y0), (outside, y0), (outside, y1), (x1 + end_half, y1)]
        codes = [path.MOVETO, *[path.CURVE4] * 3]
    axes.add_patch(
        patches.FancyArrowPatch(
            path=path(points, codes), arrowstyle="-|>", mutation_scale=10, color="#556", zorder=1
        )
    )

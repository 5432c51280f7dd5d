"""Everything that the report shows of a run, read from its directory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towerpack.monitor import JSONWriter, RunRecord
from towerpack.monitor.json_writer import WHEN
from towerpack.monitor.process_identity import is_alive
from towerpack.report.better import direction, headline
from towerpack.report.checkpoints import find_checkpoints
from towerpack.report.devices import in_short
from towerpack.report.event_images import read_images
from towerpack.report.overall_times import overall_times

POINTS_KEPT = 1500  # of a curve: more than a screen has pixels for


class NoRunError(ValueError):
    """There is nothing of a run in a directory."""


def read_run(directory: str | Path) -> dict[str, Any]:
    """The run in a directory as JSON: facts, curves, times, checkpoints, pictures.

    A curve of more than 1,500 points is thinned to the smallest and largest of each stretch, so
    that no peak is lost.
    """
    directory = Path(directory)
    facts = RunRecord.load(directory)
    records = JSONWriter.load_existing_json(directory)
    if facts is None and not records:
        raise NoRunError(
            f"expected a run's directory with {RunRecord.FILE} or {JSONWriter.LINES}, received "
            f"{directory}" + ("" if directory.is_dir() else ", which is no directory")
        )
    names = sorted({name for record in records for name in record} - set(WHEN))
    shown_first = headline(names)
    times = RunRecord.load_times(directory)
    return {
        "name": directory.resolve().name,
        "directory": str(directory),
        "state": current_state(facts),
        "facts": facts or {},
        "devices": in_short(facts["devices"]) if facts else "",
        "curves": {name: _curve(records, name) for name in names},
        "headline": [{"name": name, "better": direction(name)} for name in shown_first],
        "times": times,
        "overall": overall_times(times),
        "checkpoints": find_checkpoints(directory, records, shown_first),
        "images": read_images(directory),
    }


def current_state(facts: dict[str, Any] | None) -> str:
    """The state of a run now: one that says `running` but whose process has gone was `killed`."""
    if facts is None:
        return "unknown"
    if facts["state"] == "running" and is_alive(facts["process"]) is False:
        return "killed"
    return str(facts["state"])


def _curve(records: Sequence[dict[str, Any]], name: str) -> dict[str, list[Any]]:
    points = [
        (record["global_step"], record["epoch_num"], record[name])
        for record in records
        if name in record
    ]
    points = _thinned(points)
    steps, epochs, values = zip(*points, strict=True)
    return {"step": list(steps), "epoch": list(epochs), "value": list(values)}


def _thinned(points: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
    if len(points) <= POINTS_KEPT:
        return points
    stretch = math.ceil(len(points) / (POINTS_KEPT // 2))
    kept: list[tuple[int, int, Any]] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        known = [point for point in part if point[2] is not None] or part[:1]
        ends = {min(known, key=_value), max(known, key=_value)}
        kept += sorted(ends, key=lambda point: point[0])
    # What it ends with is what people look at first.
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _value(point: tuple[int, int, Any]) -> float:
    return math.inf if point[2] is None else float(point[2])

"""The runs under a directory, one line each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towerpack.core import logger
from towerpack.monitor import JSONWriter, RunRecord
from towerpack.report.better import best, headline
from towerpack.report.run_reader import current_state, in_short


@dataclass(frozen=True)
class RunSummary:
    """What a list says of a run."""

    directory: Path
    state: str
    epoch: int
    max_epoch: int
    step: int
    steps_per_second: float | None
    best: dict[str, float]  # of the most important scalars
    updated: float  # seconds since 1970
    size: int  # bytes of all its files
    devices: str = ""  # in short
    error: str = ""


def find_runs(directory: str | Path) -> list[RunSummary]:
    """The runs at or below a directory, the one that changed last first.

    A record that cannot be read is logged and omitted. Links to directories are not followed.
    """
    runs = []
    for place in _run_directories(Path(directory)):
        try:
            runs.append(_summary(place))
        except ValueError as error:
            logger.warning("%s", error)
    return sorted(runs, key=lambda run: -run.updated)


def _run_directories(directory: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if RunRecord.FILE in files or JSONWriter.LINES in files:
            yield Path(root)


def _summary(directory: Path) -> RunSummary:
    facts = RunRecord.load(directory)
    if facts is None:
        return _summary_of_scalars(directory)
    scalars = facts["scalars"]
    found = {name: best(name, scalars[name]) for name in headline(scalars)}
    return RunSummary(
        directory=directory,
        state=current_state(facts),
        epoch=facts["epoch"],
        max_epoch=facts["max_epoch"],
        step=facts["step"],
        steps_per_second=facts["steps_per_second"],
        best={name: point[0] for name, point in found.items() if point},
        updated=facts["updated"],
        size=_size(directory),
        devices=in_short(facts["devices"]),
        error=facts["error"],
    )


def _summary_of_scalars(directory: Path) -> RunSummary:
    """A run that has only scalars: an old one, or one without a `RunRecord`."""
    records = JSONWriter.load_existing_json(directory)
    last: dict[str, Any] = records[-1] if records else {}
    names = headline({name for record in records for name in record})
    known: dict[str, dict[str, Any]] = {}
    for name in names:
        values = [record[name] for record in records if record.get(name) is not None]
        if values:
            known[name] = {"min": [min(values)], "max": [max(values)]}
    points = {name: best(name, known[name]) for name in known}
    return RunSummary(
        directory=directory,
        state="unknown",
        epoch=last.get("epoch_num", 0),
        max_epoch=0,
        step=last.get("global_step", 0),
        steps_per_second=None,
        best={name: point[0] for name, point in points.items() if point},
        updated=(directory / JSONWriter.LINES).stat().st_mtime,
        size=_size(directory),
    )


def _size(directory: Path) -> int:
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # a saver has just removed it
                continue
    return total

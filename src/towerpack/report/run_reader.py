"""Everything that the report shows of a run, read from its directory."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from towerpack.dataflow.stage_costs import StageCost
from towerpack.monitor import CallbackCost, EpochTimes, JSONWriter, RunRecord, verdict
from towerpack.monitor.environment import available_cores, is_alive
from towerpack.monitor.json_writer import WHEN
from towerpack.report.better import direction, headline
from towerpack.report.event_images import read_images

POINTS_KEPT = 1500  # of a curve: more than a screen has pixels for


class NoRunError(ValueError):
    """A directory does not contain a run."""


def read_run(directory: str | Path) -> dict[str, Any]:
    """The run in a directory as JSON: facts, curves, times, checkpoints, pictures.

    A curve of more than 1,500 points is reduced to the smallest and largest point of each section,
    so that no peak is lost.
    """
    directory = Path(directory)
    facts = RunRecord.load(directory)
    records = JSONWriter.load_existing_json(directory)
    if facts is None and not records:
        raise NoRunError(
            f"expected a run's directory with {RunRecord.FILE} or {JSONWriter.LINES}, received "
            f"{directory}" + ("" if directory.is_dir() else ", which is not a directory")
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
    """The state of a run now: `killed` if it is recorded as running but its process is gone."""
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
    # The last point is what people read first.
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _value(point: tuple[int, int, Any]) -> float:
    return math.inf if point[2] is None else float(point[2])


LATEST = re.compile(r'^model_checkpoint_path: "(.*)"', re.MULTILINE)
MANIFEST_SUFFIX = ".manifest.json"  # of what the checkpoint room, which is above this one, writes
_STEP = re.compile(r"^(.*?)-(\d+)$")


def find_checkpoints(
    directory: str | Path, records: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Name, step, size, time and the values of some scalars at that step; the newest first.

    A checkpoint is `<name>.index` with its data beside it, or a directory `<name>-<step>`.
    """
    directory = Path(directory)
    state = directory / "checkpoint"
    latest = LATEST.search(state.read_text("utf-8")) if state.is_file() else None
    found = []
    for path in directory.iterdir():
        if path.suffix == ".index":
            name, files = path.stem, list(directory.glob(f"{path.stem}.*"))
        elif path.is_dir() and _STEP.match(path.name):
            name, files = path.name, [file for file in path.rglob("*") if file.is_file()]
        else:
            continue
        step = _step(directory, name)
        try:
            size, saved = sum(file.stat().st_size for file in files), path.stat().st_mtime
        except FileNotFoundError:  # the saver has just removed it
            continue
        found.append(
            {
                "name": name,
                "step": step,
                "size": size,
                "saved": saved,
                "latest": latest is not None and Path(latest[1]).name == name,
                "values": _values_at(step, records, names),
            }
        )
    return sorted(found, key=lambda checkpoint: -checkpoint["saved"])


def _step(directory: Path, name: str) -> int | None:
    """From the name, or from the manifest: the best model of a run has no step in its name."""
    numbered = _STEP.match(name)
    if numbered:
        return int(numbered[2])
    try:
        step = json.loads((directory / f"{name}{MANIFEST_SUFFIX}").read_text("utf-8")).get("step")
    except (OSError, ValueError, AttributeError):  # missing, or not written by towerpack
        return None
    return step if isinstance(step, int) else None


def _values_at(
    step: int | None, records: Sequence[dict[str, Any]], names: Sequence[str]
) -> dict[str, Any]:
    at = [record for record in records if record["global_step"] == step]
    return {name: record[name] for record in at for name in names if name in record}


CALLBACKS_KEPT = 6  # the slowest; the others take almost no time
FEW = 3  # epochs; of more, the first is left out: it traces, compiles and starts workers


def overall_times(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The sums over the epochs of `RunRecord.load_times`, and the verdict on them."""
    if not epochs:
        return None
    counted = epochs if len(epochs) < FEW else epochs[1:]
    times = EpochTimes(
        total=sum(epoch["epoch"] for epoch in counted),
        data=sum(epoch["data"] for epoch in counted),
        step=sum(epoch["step"] for epoch in counted),
        callbacks=sum(epoch["callbacks"] for epoch in counted),
        stages=_stages(counted),
        by_callback=_by_callback(counted),
        cores=counted[-1].get("cores") or available_cores(),
        first=counted is epochs,
    )
    stages = [
        {
            "label": stage.label,
            "depth": stage.depth,
            "workers": stage.workers,
            "parallel": stage.parallel,
            "datapoints": stage.datapoints,
            "seconds": stage.seconds,
            "load": stage.load / times.total if times.total else 0.0,
        }
        for stage in times.stages
    ]
    costly = sorted(times.by_callback.items(), key=lambda pair: -pair[1].seconds)
    callbacks = [
        {"name": name, "seconds": cost.seconds, "share": times.share(cost.seconds)}
        for name, cost in costly[:CALLBACKS_KEPT]
    ]
    return {
        "verdict": verdict(times),
        "parts": times.scalars(),
        "stages": stages,
        "callbacks": callbacks,
        "epochs": len(counted),
    }


def _stages(epochs: Sequence[Mapping[str, Any]]) -> list[StageCost]:
    """The stages of the last epoch, with what the same stages have cost in all of them."""
    sums: dict[tuple[int, str], list[float]] = {}
    for epoch in epochs:
        for place, stage in enumerate(epoch["stages"]):
            known = sums.setdefault((place, stage["label"]), [0, 0.0])
            known[0] += stage["datapoints"]
            known[1] += stage["seconds"]
    found = []
    for place, stage in enumerate(epochs[-1]["stages"]):
        datapoints, seconds = sums[place, stage["label"]]
        found.append(
            StageCost(
                label=stage["label"],
                depth=stage["depth"],
                workers=stage["workers"],
                parallel=stage["parallel"],
                datapoints=int(datapoints),
                seconds=seconds,
            )
        )
    return found


def _by_callback(epochs: Sequence[Mapping[str, Any]]) -> dict[str, CallbackCost]:
    sums: dict[str, CallbackCost] = {}
    for epoch in epochs:
        for name, cost in epoch["callbacks_by_name"].items():
            known = sums.get(name, CallbackCost(0.0))
            sums[name] = CallbackCost(
                known.seconds + cost["seconds"], known.at_steps + cost["at_steps"]
            )
    return sums


def in_short(devices: Sequence[str]) -> str:
    """How many of which kind.

    >>> in_short(["CPU:0"]), in_short(["GPU:0 NVIDIA A100", "GPU:1 NVIDIA A100"])
    ('CPU', '2 × NVIDIA A100')
    """
    kinds = Counter(_kind(device) for device in devices)
    return ", ".join(f"{count} × {kind}" if count > 1 else kind for kind, count in kinds.items())


def _kind(device: str) -> str:
    name, _, model = device.partition(" ")
    return model or name.partition(":")[0]

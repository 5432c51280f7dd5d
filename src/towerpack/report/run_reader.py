"""Everything that the report shows of a run, read from its directory."""

from __future__ import annotations

import base64
import glob
import importlib.util
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from towerpack.core.optional import require
from towerpack.core.plain_settings import flat
from towerpack.dataflow.statistics import StageCost
from towerpack.monitor import (
    CallbackCost,
    EpochTimes,
    JSONWriter,
    RankTimes,
    RunRecord,
    verdict,
)
from towerpack.monitor.environment import available_cores
from towerpack.monitor.files import FILE_MARK, read_event_records
from towerpack.monitor.json_writer import WHEN
from towerpack.monitor.run_record import settings_of
from towerpack.monitor.verdict import costly_straggler
from towerpack.report.runs import current_state, devices_of, direction, headline

POINTS_KEPT = 1500  # of a curve, more than a screen can show


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
        "settings": flat(settings_of(facts or {}) or {}),
        "devices": devices_of(facts) if facts else "",
        "curves": {name: _curve(records, name) for name in names},
        "headline": [{"name": name, "better": direction(name)} for name in shown_first],
        "times": times,
        "overall": overall_times(times),
        "checkpoints": find_checkpoints(directory, records, shown_first),
        "images": read_images(directory),
    }


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
    # The last point is the one that people read first.
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _value(point: tuple[int, int, Any]) -> float:
    return math.inf if point[2] is None else float(point[2])


LATEST = re.compile(r'^model_checkpoint_path: "(.*)"', re.MULTILINE)
MANIFEST_SUFFIX = ".manifest.json"  # as in the room `checkpoint`, which this one must not import
_STEP = re.compile(r"-(\d+)$")


def find_checkpoints(
    directory: str | Path, records: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Name, step, size, time and some scalars of each checkpoint, the newest first."""
    directory = Path(directory)
    state = directory / "checkpoint"
    content = state.read_text("utf-8", errors="replace") if state.is_file() else ""
    latest = LATEST.search(content)
    found = []
    for index in directory.glob("*.index"):
        name = index.stem
        step = _step(directory, name)
        try:
            size = sum(file.stat().st_size for file in directory.glob(f"{glob.escape(name)}.*"))
            saved = index.stat().st_mtime
        except FileNotFoundError:  # the saver has just removed it
            continue
        at_step = [record for record in records if record["global_step"] == step]
        found.append(
            {
                "name": name,
                "step": step,
                "size": size,
                "saved": saved,
                "latest": latest is not None and Path(latest[1]).name == name,
                "values": {n: record[n] for record in at_step for n in names if n in record},
            }
        )
    return sorted(found, key=lambda checkpoint: -checkpoint["saved"])


def _step(directory: Path, name: str) -> int | None:
    """From the name, or from the manifest if the name has no step, as that of the best model."""
    numbered = _STEP.search(name)
    if numbered:
        return int(numbered[1])
    try:
        step = json.loads((directory / f"{name}{MANIFEST_SUFFIX}").read_text("utf-8")).get("step")
    except (OSError, ValueError, AttributeError):  # missing, or not written by towerpack
        return None
    return step if isinstance(step, int) else None


# Some are missing in records of older versions.
STAGE_FACTS = ("label", "depth", "workers", "parallel", "batches", "external")
RANK_PARTS = ("data", "exchange", "step")
CALLBACKS_KEPT = 6  # the slowest; the others take almost no time
FEW = 3  # epochs; of more, the first is left out, since it traces, compiles and starts workers


def overall_times(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The sums over the epochs that `RunRecord.load_times` returned, and the verdict on them."""
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
        exchange=sum(epoch.get("exchange", 0.0) for epoch in counted),
        ranks=_ranks(counted),
    )
    slow = costly_straggler(times)
    costly = sorted(times.by_callback.items(), key=lambda pair: -pair[1].seconds)
    callbacks = [
        {"name": name, "seconds": cost.seconds, "share": times.share(cost.seconds)}
        for name, cost in costly[:CALLBACKS_KEPT]
    ]
    return {
        "verdict": verdict(times),
        "parts": times.scalars(),
        "stages": times.stage_records(),
        "callbacks": callbacks,
        "ranks": [asdict(each) for each in times.ranks],
        "straggler": None if slow is None else slow.rank,
        "epochs": len(counted),
    }


def _ranks(epochs: Sequence[Mapping[str, Any]]) -> list[RankTimes]:
    """The sums of each rank's times, over the epochs that had as many ranks as the last one."""
    last = epochs[-1].get("ranks", [])
    alike = [epoch.get("ranks", []) for epoch in epochs if len(epoch.get("ranks", [])) == len(last)]
    return [
        RankTimes(
            known["host"],
            **{name: sum(ranks[rank][name] for ranks in alike) for name in RANK_PARTS},
        )
        for rank, known in enumerate(last)
    ]


def _stages(epochs: Sequence[Mapping[str, Any]]) -> list[StageCost]:
    """The stages of the last epoch, with the sums of their costs in all epochs."""
    sums: dict[tuple[int, str], list[Any]] = {}
    for epoch in epochs:
        for place, stage in enumerate(epoch["stages"]):
            known = sums.setdefault((place, stage["label"]), [0, 0.0])
            known[0] += stage["datapoints"]
            known[1] += stage["seconds"]
    found = []
    for place, stage in enumerate(epochs[-1]["stages"]):
        facts = {name: stage[name] for name in STAGE_FACTS if name in stage}
        datapoints, seconds = sums[place, stage["label"]]
        found.append(StageCost(**facts, datapoints=datapoints, seconds=seconds))
    return found


def _by_callback(epochs: Sequence[Mapping[str, Any]]) -> dict[str, CallbackCost]:
    sums: dict[str, CallbackCost] = {}
    for epoch in epochs:
        for name, cost in epoch["callbacks_by_name"].items():
            known = sums.get(name, CallbackCost(0.0))
            sums[name] = CallbackCost(
                known.seconds + cost["seconds"],
                known.at_steps + cost["at_steps"],
                cost.get("has_interval", False),
            )
    return sums


STEPS_KEPT = 8  # of each picture: enough to see how it changed
TAGS_KEPT = 60
LARGEST = 2_000_000  # bytes of a picture; phones cannot open a page of larger ones
ALL_TOGETHER = 24_000_000
_KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


def read_images(directory: str | Path) -> list[dict[str, Any]]:
    """[{tag, items: [{step, src}]}] with `src` a data URL; the steps are spread over the run.

    Without tensorboard, whose message classes it needs, there are no pictures.
    """
    if importlib.util.find_spec("tensorboard") is None:
        return []
    pictures: dict[str, dict[int, bytes]] = {}
    for path in sorted(Path(directory).glob(f"{FILE_MARK}*")):
        _collect(path, pictures)
    bytes_left = ALL_TOGETHER
    shown = []
    for tag in sorted(pictures)[:TAGS_KEPT]:
        items = []
        for step in _spread(sorted(pictures[tag])):
            data = pictures[tag][step]
            if len(data) <= bytes_left:
                bytes_left -= len(data)
                items.append({"step": step, "src": _data_url(data)})
        if items:
            shown.append({"tag": tag, "items": items})
    return shown


def _collect(path: Path, pictures: dict[str, dict[int, bytes]]) -> None:
    event_pb2 = require("tensorboard.compat.proto.event_pb2", extra="tf")
    for record in read_event_records(path):
        event = event_pb2.Event.FromString(record)
        started = event.session_log.status == event_pb2.SessionLog.START
        if event.HasField("session_log") and started:
            for steps in pictures.values():  # a resumed run logs these again
                for step in [step for step in steps if step >= event.step]:
                    del steps[step]
        for value in event.summary.value:
            for number, data in enumerate(_encoded(value)):
                tag = value.tag if number == 0 else f"{value.tag}/{number}"
                if 0 < len(data) <= LARGEST:
                    pictures.setdefault(tag, {})[event.step] = data


def _encoded(value: Any) -> list[bytes]:
    """The encoded pictures of a summary, by the old protocol or that of `tf.summary.image`."""
    if value.HasField("image"):
        return [value.image.encoded_image_string]
    if value.metadata.plugin_data.plugin_name == "images":
        return list(value.tensor.string_val)[2:]  # after width and height
    return []


def _spread(steps: list[int]) -> list[int]:
    if len(steps) <= STEPS_KEPT:
        return steps
    last = len(steps) - 1
    return [steps[round(i * last / (STEPS_KEPT - 1))] for i in range(STEPS_KEPT)]


def _data_url(data: bytes) -> str:
    kind = next((kind for mark, kind in _KINDS.items() if data.startswith(mark)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"

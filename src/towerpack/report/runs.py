"""The runs below a directory in one line each, and which of their scalars are shown."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from towerpack.core import logger
from towerpack.core.plain_settings import flat
from towerpack.monitor import JSONWriter, RunRecord
from towerpack.monitor.environment import is_alive
from towerpack.monitor.run_record import points_of, settings_of


@dataclass(frozen=True)
class RunSummary:
    """One row of the list of runs."""

    directory: Path
    state: str
    epoch: int
    max_epoch: int
    step: int
    steps_per_second: float | None
    best: dict[str, float]  # of the most important scalars
    updated: float  # seconds since 1970
    size: int  # bytes of all its files
    devices: str = ""
    error: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # by their dotted keys


def find_runs(directory: str | Path) -> list[RunSummary]:
    """The runs in a directory or below it, the one that changed last first.

    A record that cannot be read is logged and left out. Links to directories are not followed.
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
    facts = RunRecord.load(directory) or _facts_from_scalars(directory)
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
        devices=devices_of(facts),
        error=facts["error"],
        settings=flat(settings_of(facts) or {}),
    )


def devices_of(facts: Mapping[str, Any]) -> str:
    """The devices of a run in short, and how many hosts they belong to if there are several.

    >>> devices_of({"devices": ["CPU:0"] * 4, "configuration": {"hosts": {"a": 2, "b": 2}}})
    '4 × CPU on 2 hosts'
    """
    hosts = facts.get("configuration", {}).get("hosts", {})
    place = f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    return in_short(facts["devices"]) + place


def _facts_from_scalars(directory: Path) -> dict[str, Any]:
    """The facts of a run that has only scalars, because it is old or had no `RunRecord`."""
    records = JSONWriter.load_existing_json(directory)
    last: dict[str, Any] = records[-1] if records else {}
    return {
        "state": "unknown",
        "epoch": last.get("epoch_num", 0),
        "max_epoch": 0,
        "step": last.get("global_step", 0),
        "steps_per_second": None,
        "scalars": points_of(records),
        "updated": (directory / JSONWriter.LINES).stat().st_mtime,
        "devices": [],
        "error": "",
    }


def _size(directory: Path) -> int:
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # a saver has just removed it
                continue
    return total


# Whole words of a name: `val_acc` has one, `accumulated` has none.
_LOWER = re.compile(
    r"(?:^|[^a-z])(?:error|err|loss|cost|perplexity|ppl|rmse|mse|mae|fid|wer|cer|nll|top\d+)"
    r"(?:$|[^a-z])"
)
_HIGHER = re.compile(
    r"(?:^|[^a-z])(?:accuracy|acc|auc|f1|score|psnr|ssim|iou|miou|map|ap|bleu|reward|return|"
    r"precision|recall)(?:$|[^a-z])"
)
_COST = re.compile(r"loss|cost|nll")  # users prefer a metric to a cost
_HELD_OUT = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|test|eval|dev)(?:$|[^a-z])")


def direction(name: str) -> Literal["min", "max"] | None:
    """Whether small or large values are better; None if the name does not indicate it.

    >>> direction("val-error"), direction("validation/accuracy"), direction("learning_rate")
    ('min', 'max', None)
    """
    lowered = name.lower()
    if _LOWER.search(lowered):
        return "min"
    if _HIGHER.search(lowered):
        return "max"
    return None


def headline(names: Iterable[str], count: int = 3) -> list[str]:
    """The scalars to show first: those with a direction, and those of held-out data before others.

    >>> headline(["cost", "lr", "train_error", "val_error"], 2)
    ['val_error', 'train_error']
    """
    ranked = sorted(
        (name for name in names if direction(name)),
        key=lambda name: (
            not _HELD_OUT.search(name.lower()),
            bool(_COST.search(name.lower())),
            len(name),
            name,
        ),
    )
    return ranked[:count]


def best(name: str, known: Mapping[str, Any]) -> list[Any] | None:
    """[value, step, epoch] of the best value, from the `scalars` of a run record."""
    way = direction(name)
    return known.get(way) if way else None


def current_state(facts: dict[str, Any] | None) -> str:
    """The state of a run now: `killed` if it is recorded as running, but its process is gone."""
    if facts is None:
        return "unknown"
    if facts["state"] == "running" and is_alive(facts["process"]) is False:
        return "killed"
    return str(facts["state"])


def in_short(devices: Sequence[str]) -> str:
    """The number of devices of each kind.

    >>> in_short(["CPU:0"]), in_short(["GPU:0 NVIDIA A100", "GPU:1 NVIDIA A100"])
    ('CPU', '2 × NVIDIA A100')
    """
    kinds = Counter(_kind(device) for device in devices)
    return ", ".join(f"{count} × {kind}" if count > 1 else kind for kind, count in kinds.items())


def _kind(device: str) -> str:
    name, _, model = device.partition(" ")
    return model or name.partition(":")[0]

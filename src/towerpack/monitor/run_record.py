"""The record of a run on disk: its configuration, its state, and where its time goes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from towerpack.core import logger
from towerpack.core.files import atomic_file
from towerpack.core.plain_settings import differing_keys, flat
from towerpack.monitor.base import MonitorBase, RunInfo
from towerpack.monitor.environment import environment, process_identity
from towerpack.monitor.files import GrowingFile
from towerpack.monitor.json_writer import (
    JSONWriter,
    earlier_records,
    read_records,
    scalars_of,
)
from towerpack.monitor.verdict import EpochTimes

FORMAT = 1
WRITE_INTERVAL = 1.0  # seconds: an epoch may be shorter than the time to write a file
LONGEST_ERROR = 2000  # characters of the exception that ended a run
_NEEDED = {"started": float, "sessions": list, "hyperparameters": dict}  # to resume a run
NOT_RANKED = ("time/", "learning_rate")  # these have no best value


class RunRecord(MonitorBase):
    """Keeps `run.json` and `times.jsonl` in the run's directory, for `towerpack runs` and `report`.

    `run.json` holds the command, configuration and environment of the run, its progress (state,
    epoch, step, speed), the classes of its data, and the smallest, largest and last value of each
    scalar. It is replaced as a whole at the end and after every epoch, but at most once a second.
    `times.jsonl` has a line for each epoch with its times and the verdict. A resumed run continues
    both.

    The state is `running`, `finished`, `interrupted` (Ctrl-C, SIGTERM) or `failed`. A reader of
    `running` should check with `environment.is_alive` that the process still exists.
    """

    FILE = "run.json"
    TIMES = "times.jsonl"
    needs_directory = True

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}
        self._written = -math.inf

    @classmethod
    def load(cls, directory: str | Path) -> dict[str, Any] | None:
        """The facts of the run in a directory; None if there is no record."""
        try:
            facts = json.loads(Path(directory, cls.FILE).read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{Path(directory, cls.FILE)} is not a run record: {error}") from error
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise ValueError(f"{Path(directory, cls.FILE)} is not a run record of format {FORMAT}")
        return facts

    @classmethod
    def load_times(cls, directory: str | Path) -> list[dict[str, Any]]:
        """The times of each epoch, oldest first."""
        return read_records(Path(directory, cls.TIMES))

    def open(self, run: RunInfo) -> None:
        self._directory = run.required_directory()
        now = time.time()
        before = _earlier_facts(self._directory) if run.continues else None
        configuration = plain(run.configuration)
        if before:
            _log_changes(before, {"configuration": configuration})
        # The last `run.json` may be older than the checkpoint, or contain later values, which will
        # be logged again. So the points of scalars come from the records of all steps.
        earlier = earlier_records(self._directory / JSONWriter.LINES, run)
        self._facts = {
            "format": FORMAT,
            "state": "running",
            "error": "",
            "process": process_identity(),
            "command": " ".join(sys.argv),
            "started": before["started"] if before else now,
            "sessions": [*(before["sessions"] if before else []), _session(run, now)],
            "updated": now,
            "epoch": run.starting_epoch - 1,
            "max_epoch": run.max_epoch,
            "step": run.starting_step,
            "steps_per_epoch": run.steps_per_epoch,
            "steps_per_second": None,
            "verdict": "",
            "scalars": points_of(earlier) or (before or {}).get("scalars", {}),
            "hyperparameters": before["hyperparameters"] if before else {},
            "classes": (before or {}).get("classes", {}),
            "configuration": configuration,
            "environment": environment(),
            "devices": list(run.devices),
        }
        times = earlier_records(self._directory / self.TIMES, run)
        content = "".join(json.dumps(record) + "\n" for record in times)
        self._times = GrowingFile(self._directory / self.TIMES, content.encode())
        self._last_step, self._last_time = run.starting_step, time.monotonic()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._times.write()
        self._write()

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        note_point(self._facts["scalars"], name, value, step, epoch)

    def process_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self._facts["hyperparameters"] |= plain(values)

    def process_classes(self, name: str, counts: Mapping[str, int], note: str) -> None:
        # A list keeps the order of the classes in the page's script, too.
        self._facts["classes"][name] = {"counts": [*counts.items()], "note": note}

    def process_times(self, times: EpochTimes, verdict: str, step: int, epoch: int) -> None:
        self._facts["verdict"] = verdict or self._facts["verdict"]
        record = {
            "epoch_num": epoch,
            "global_step": step,
            **times.scalars(),
            "verdict": verdict,
            "cores": times.cores,
            "stages": times.stage_records(),
            "callbacks_by_name": {n: asdict(cost) for n, cost in times.by_callback.items()},
            "ranks": [asdict(each) for each in times.ranks],
        }
        self._times.append(json.dumps(record).encode() + b"\n")
        self._times.write()

    def flush(self, step: int, epoch: int) -> None:
        now = time.monotonic()
        if step > self._last_step:
            seconds = max(now - self._last_time, 1e-9)
            self._facts["steps_per_second"] = (step - self._last_step) / seconds
            self._last_step, self._last_time = step, now
        self._facts |= {"epoch": epoch, "step": step}
        if now - self._written >= WRITE_INTERVAL:
            self._write()

    def end(self, error: BaseException | None) -> None:
        state = "finished"
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            state = "interrupted"
        elif error is not None:
            state = "failed"
            self._facts["error"] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
        self._facts["state"] = self._facts["sessions"][-1]["state"] = state
        self._facts["sessions"][-1]["ended"] = time.time()
        self._write()

    def _write(self) -> None:
        self._facts["updated"] = time.time()
        text = msgspec.json.format(msgspec.json.encode(self._facts), indent=1)
        with atomic_file(self._directory / self.FILE) as file:
            file.write(text)
        self._written = time.monotonic()


def _earlier_facts(directory: Path) -> dict[str, Any] | None:
    """The facts of the run that is resumed. A damaged file is renamed and reported."""
    try:
        facts = RunRecord.load(directory)
        if facts is not None and not all(
            isinstance(facts.get(name), kind) for name, kind in _NEEDED.items()
        ):
            raise ValueError(f"{directory / RunRecord.FILE} lacks some of {sorted(_NEEDED)}")
    except OSError as error:
        logger.warning("%s cannot be read: %s", directory / RunRecord.FILE, error)
        return None
    except ValueError as error:
        aside = directory / f"{RunRecord.FILE}.damaged"
        with contextlib.suppress(OSError):  # then the new record replaces it
            os.replace(directory / RunRecord.FILE, aside)
        logger.warning("%s; it was renamed to %s, and a new record begins", error, aside)
        return None
    return facts


def settings_of(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings in the configuration of a run; None if it has none."""
    configuration = facts.get("configuration")
    settings = configuration.get("settings") if isinstance(configuration, dict) else None
    return settings if isinstance(settings, dict) else None


def _log_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    before, now = flat(settings_of(before) or {}), flat(settings_of(now) or {})
    changes = [
        f"{key} from {before.get(key, 'absent')!r} to {now.get(key, 'absent')!r}"
        for key in differing_keys([before, now])
    ]
    if changes:
        logger.warning(
            "this run continues with changed settings: %s. What the checkpoint contains, such as a "
            "learning rate in a variable, stays as it was",
            ", ".join(changes),
        )


def note_point(
    scalars: dict[str, dict[str, list[Any]]], name: str, value: float, step: int, epoch: int
) -> None:
    """Records a value as the last of its name, and as the smallest or largest if it is so."""
    known = scalars.setdefault(name, {})
    point = [value if math.isfinite(value) else None, step, epoch]
    known["last"] = point
    if not math.isfinite(value) or name.startswith(NOT_RANKED):
        return
    if "min" not in known or value < known["min"][0]:
        known["min"] = point
    if "max" not in known or value > known["max"][0]:
        known["max"] = point


def points_of(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The smallest, largest and last value of each scalar in the records of a `JSONWriter`."""
    scalars: dict[str, Any] = {}
    for record in records:
        for name, value in scalars_of(record):
            note_point(scalars, name, value, record["global_step"], record["epoch_num"])
    return scalars


def plain(value: Any) -> Any:
    """The value as JSON. Anything but numbers, text, lists and mappings becomes its `str`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    # The default repr contains an address, which differs from run to run.
    has_default_repr = getattr(type(value), "__repr__", None) is object.__repr__
    return type(value).__name__ if has_default_repr else str(value)


def _session(run: RunInfo, now: float) -> dict[str, Any]:
    return {
        "started": now,
        "ended": None,
        "state": "running",
        "from_epoch": run.starting_epoch,
        "from_step": run.starting_step,
        "pid": os.getpid(),
    }

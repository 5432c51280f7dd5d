"""A sweep's directory: its description, the trials in optuna's journal, and a page about them."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from towerpack._version import __version__
from towerpack.core.optional import require
from towerpack.monitor import RunRecord
from towerpack.report.page import fill_page

SWEEP_FILE = "sweep.json"
SWEEP_PAGE = "sweep.html"
TRIAL_PAGE = "report.html"  # in the directory of each trial
JOURNAL = "trials.journal"
STUDY = "sweep"
SCRIPTS = ("scale.js", "chart.js", "tables.js", "parallel.js", "sweep.js")
FORMAT = 1
STATES = {"FAIL": "failed"}  # where the word of optuna is another one


class NoSweepError(ValueError):
    """A directory does not contain a sweep."""


def load_sweep(directory: str | Path) -> dict[str, Any]:
    """What `towerpack sweep` wrote about a sweep when it began."""
    path = Path(directory, SWEEP_FILE)
    try:
        sweep = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise NoSweepError(f"expected a sweep's directory, received {directory}") from error
    except ValueError as error:
        raise NoSweepError(f"{path} is not the description of a sweep: {error}") from error
    if not isinstance(sweep, dict) or sweep.get("format") != FORMAT:
        raise NoSweepError(f"{path} is not the description of a sweep of format {FORMAT}")
    return sweep


def open_study(directory: str | Path) -> Any:
    """The study of a sweep: an `optuna.Study` in the journal of its directory, made if missing.

    The journal is text, one JSON line for each event; nothing is unpickled. The pruner compares a
    trial with the median of the others, once there are five, and not after its first epoch alone.
    """
    optuna = require("optuna", extra="sweep")
    journal = require("optuna.storages.journal", extra="sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweep = load_sweep(directory)
    path = Path(directory, JOURNAL)
    backend = journal.JournalFileBackend(str(path), lock_obj=JournalLock(path))
    storage = journal.JournalStorage(backend)
    pruners = optuna.pruners
    pruner = pruners.MedianPruner(n_warmup_steps=2) if sweep["prune"] else pruners.NopPruner()
    if not storage.get_all_studies():
        direction = optuna.study.StudyDirection["MAXIMIZE" if sweep["maximize"] else "MINIMIZE"]
        storage.create_new_study([direction], STUDY)
    return optuna.load_study(study_name=STUDY, storage=storage, pruner=pruner)


def running_trial(study: Any, number: int) -> Any:
    """The `optuna.Trial` by which this process continues a trial of `open_study`."""
    storage = study._storage
    study_id = storage.get_study_id_from_name(STUDY)
    trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
    return require("optuna", extra="sweep").trial.Trial(study, trial_id)


class JournalLock:
    """The right to append to a journal, which the kernel takes back from a process that is killed.

    optuna's own locks are files, which a killed process leaves: the next one would wait for half a
    minute. An incomplete last line, which it may leave as well, is removed, because the journal
    could not be read once another line follows it.
    """

    def __init__(self, journal: Path):
        self._journal = journal
        self._descriptor = -1

    def acquire(self) -> bool:
        self._descriptor = os.open(self._journal, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            content = self._journal.read_bytes()
            os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        os.close(self._descriptor)


def read_sweep(directory: str | Path) -> dict[str, Any]:
    """The sweep in a directory as JSON: its parameters, and each trial with its curve.

    The value of a trial is the best of its epochs. Trials are in the order in which they began.
    """
    directory = Path(directory)
    sweep = load_sweep(directory)
    trials = [_trial(trial, sweep, directory) for trial in open_study(directory).get_trials(False)]
    return {
        "name": directory.resolve().name,
        "directory": str(directory),
        **sweep,
        "trials": trials,
    }


def _trial(trial: Any, sweep: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    name = trial_name(trial.number)
    curve = sorted(trial.intermediate_values.items())
    return {
        "number": trial.number,
        "state": STATES.get(trial.state.name, trial.state.name.lower()),
        "parameters": trial.params,
        "value": best_value(trial, sweep["maximize"]),
        "epoch": [epoch for epoch, _ in curve],
        "curve": [value if math.isfinite(value) else None for _, value in curve],
        "seconds": _seconds(RunRecord.load(directory / name)),
        "error": trial.user_attrs.get("error", ""),
        "command": trial.user_attrs.get("command", ""),
        "link": f"{name}/{TRIAL_PAGE}" if (directory / name / TRIAL_PAGE).exists() else f"{name}/",
    }


def _seconds(facts: Mapping[str, Any] | None) -> float | None:
    """How long a run took in all its sessions. One that was killed ended at the last record."""
    if facts is None:
        return None
    *earlier, last = facts["sessions"]
    ended = sum(session["ended"] - session["started"] for session in earlier if session["ended"])
    return ended + (last["ended"] or facts["updated"]) - last["started"]


def trial_name(number: int) -> str:
    """The directory of a trial within that of its sweep."""
    return f"trial-{number:04d}"


def best_value(trial: Any, maximize: bool) -> float | None:
    """The best value of a trial in any of its epochs; None without a finite one."""
    values = [value for value in trial.intermediate_values.values() if math.isfinite(value)]
    if not values:
        return None
    return max(values) if maximize else min(values)


def render_sweep(sweep: dict[str, Any]) -> str:
    """The page of a sweep, as `read_sweep` returned it: one file that needs no network."""
    facts = {"towerpack": __version__, "made": time.time()}
    return fill_page(sweep["name"], facts | {"sweep": sweep}, SCRIPTS)

"""Scalars as JSON, for people's own scripts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from towerpack.core import logger
from towerpack.core.files import atomic_file
from towerpack.monitor.base import MonitorBase, RunInfo

WHEN = ("epoch_num", "global_step")  # in a record, beside its scalars
_CLOSING = "\n]\n"  # of the list


class JSONWriter(MonitorBase):
    """One record of all scalars per step at which some were put.

    `stats.jsonl` gets a line for each, appended: a crash loses at most the last line. `stats.json`
    holds the same records as one list, the format of old tools, and is whole at any time: a record
    is written over its closing bracket. What comes later at the step of the last record joins it. A
    run that goes on drops the records of steps that are about to come again, and appends: one
    continuous file, every step once. A run that begins anew in the same directory moves the old
    files aside. NaN and infinity become null.
    """

    LINES = "stats.jsonl"
    LIST = "stats.json"

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._record: dict[str, Any] = {}
        self._written = ""  # how it stands at the end of the files by now
        self._is_first = True
        self._earlier: list[dict[str, Any]] = []

    @classmethod
    def load_existing_json(cls, directory: str | Path | None = None) -> list[dict[str, Any]]:
        """The records of an earlier run, by default in the logger's directory.

        An incomplete last line, which a killed process leaves, is left out; so are steps that a
        later record overtook.
        """
        directory = directory or logger.get_logger_dir()
        return read_records(Path(directory, cls.LINES)) if directory else []

    @classmethod
    def load_existing_epoch_number(cls, directory: str | Path | None = None) -> int | None:
        """The last epoch of an earlier run, or None."""
        records = cls.load_existing_json(directory)
        return int(records[-1]["epoch_num"]) if records else None

    def open(self, run: RunInfo) -> None:
        self._directory = run.directory
        if run.directory is None:
            return
        kept = earlier_records(run.directory / self.LINES, run)
        # Without the state of a checkpoint, a gap means that they are another run's records.
        strange = kept and not run.resumed and kept[-1]["epoch_num"] + 1 < run.starting_epoch
        if strange or not kept:
            self._move_aside(run.directory)
            kept = []
        self._write_all(run.directory, kept)
        self._record = dict(kept[-1]) if kept else {}
        self._written = json.dumps(self._record) if kept else ""
        self._is_first = len(kept) <= 1
        self._earlier = kept

    def history(self) -> Iterator[tuple[str, int, float]]:
        records, self._earlier = self._earlier, []
        for record in records:
            for name, value in scalars_of(record):
                yield name, record["global_step"], value

    def _move_aside(self, directory: Path) -> None:
        moved = [name for name in (self.LINES, self.LIST) if Path(directory, name).exists()]
        for name in moved:
            os.replace(directory / name, directory / f"{name}.old")
        if moved:
            logger.info("the scalars of an earlier run are now in %s.old", self.LINES)

    def _write_all(self, directory: Path, records: list[dict[str, Any]]) -> None:
        with atomic_file(directory / self.LINES, "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        with atomic_file(directory / self.LIST, "w") as file:
            file.write("[" + ",".join("\n" + json.dumps(record) for record in records) + _CLOSING)

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        if self._record and self._record["global_step"] != step:
            self._write()
            self._record, self._written, self._is_first = {}, "", False
        self._record.setdefault("epoch_num", epoch)
        self._record.setdefault("global_step", step)
        # JSON has no NaN: null is what every reader understands.
        self._record[name] = value if math.isfinite(value) else None

    def persist(self) -> None:
        self._write()

    def flush(self, step: int, epoch: int) -> None:
        self._write()

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        if not self._record or self._directory is None:
            return
        line, before = json.dumps(self._record), self._written
        if line == before:
            return
        lead = "\n" if self._is_first else ",\n"
        _replace_end(self._directory / self.LINES, f"{before}\n" if before else "", f"{line}\n")
        _replace_end(
            self._directory / self.LIST,
            (f"{lead}{before}" if before else "") + _CLOSING,
            f"{lead}{line}{_CLOSING}",
        )
        self._written = line


def _replace_end(path: Path, old: str, new: str) -> None:
    """Both in ASCII; `old` may be empty."""
    with open(path, "r+b") as file:
        file.seek(-len(old), os.SEEK_END)
        file.write(new.encode("ascii"))
        file.truncate()


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """The whole records of a file of JSON lines with `global_step`, in rising order of steps.

    A line that is cut is left out, and so is what a later record of a smaller step overtook.
    """
    path = Path(path)
    records: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            logger.warning("%s has an incomplete line, left out: %r", path, line[:80])
            continue
        while records and records[-1]["global_step"] > record["global_step"]:
            records.pop()
        records.append(record)
    return records


def earlier_records(path: str | Path, run: RunInfo) -> list[dict[str, Any]]:
    """Those of the part of a run that is done already."""
    return [x for x in read_records(path) if run.is_before(x["global_step"], x["epoch_num"])]


def scalars_of(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The names and values of a record, without when they were put."""
    for name, value in record.items():
        if name not in WHEN:
            yield name, math.nan if value is None else value

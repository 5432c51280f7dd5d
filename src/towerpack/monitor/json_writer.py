"""Scalars as JSON, for users' own scripts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from towerpack.core import logger
from towerpack.monitor.base import MonitorBase, RunInfo
from towerpack.monitor.files import GrowingFile

WHEN = ("epoch_num", "global_step")  # in a record, beside its scalars
_CLOSING = b"\n]\n"  # of the list


class JSONWriter(MonitorBase):
    """Writes one record for each step at which scalars were logged, with all of them.

    `stats.jsonl` gets a line for each record, so a crash loses at most the last line. `stats.json`
    holds the same records as one list, the format of old tools. It is valid at any time, since each
    record overwrites the closing bracket. Later scalars of the same step join the last record.

    A resumed run drops the records of steps that will be logged again and appends to the others.
    Every step is thus in the file once. A new run in the same directory renames the old files. NaN
    and infinity become null. Records that a failing disk did not accept are written later.
    """

    LINES = "stats.jsonl"
    LIST = "stats.json"
    needs_directory = True

    def __init__(self) -> None:
        self._record: dict[str, Any] = {}
        self._earlier: list[dict[str, Any]] = []
        self._aside = False  # whether the first write must move the files of another run aside

    @classmethod
    def load_existing_json(cls, directory: str | Path | None = None) -> list[dict[str, Any]]:
        """The records of an earlier run, by default in the logger's directory.

        It leaves out an incomplete last line, which a killed process leaves, and records that are
        followed by one of an earlier step.
        """
        directory = directory or logger.get_logger_dir()
        return read_records(Path(directory, cls.LINES)) if directory else []

    @classmethod
    def load_existing_epoch_number(cls, directory: str | Path | None = None) -> int | None:
        """The last epoch of an earlier run, or None."""
        records = cls.load_existing_json(directory)
        return int(records[-1]["epoch_num"]) if records else None

    def open(self, run: RunInfo) -> None:
        self._directory = run.required_directory()
        kept = earlier_records(self._directory / self.LINES, run)
        # Without the state of a checkpoint, a missing epoch indicates records of another run.
        strange = kept and not run.resumed and kept[-1]["epoch_num"] + 1 < run.starting_epoch
        self._aside = bool(strange) or not kept
        if self._aside:
            kept = []
        self._earlier = kept
        # The last record stays open: later scalars of the same step join it.
        done, self._record = (kept[:-1], dict(kept[-1])) if kept else ([], {})
        self._lead = b",\n" if done else b"\n"
        lines = [json.dumps(record).encode() for record in done]
        self._lines = GrowingFile(self._directory / self.LINES, b"".join(x + b"\n" for x in lines))
        opening = b"[" + b",".join(b"\n" + x for x in lines)
        self._list = GrowingFile(self._directory / self.LIST, opening)
        self._write()

    def history(self) -> Iterator[tuple[str, int, float]]:
        records, self._earlier = self._earlier, []
        for record in records:
            for name, value in scalars_of(record):
                yield name, record["global_step"], value

    def _move_aside(self) -> None:
        moved = [name for name in (self.LINES, self.LIST) if (self._directory / name).exists()]
        for name in moved:
            os.replace(self._directory / name, self._directory / f"{name}.old")
        if moved:
            logger.info("the scalars of an earlier run are now in %s.old", self.LINES)

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        if self._record and self._record["global_step"] != step:
            self._finish_record()
        self._record.setdefault("epoch_num", epoch)
        self._record.setdefault("global_step", step)
        # JSON has no NaN, and every reader understands null.
        self._record[name] = value if math.isfinite(value) else None

    def persist(self) -> None:
        self._write()

    def flush(self, step: int, epoch: int) -> None:
        self._write()

    def close(self) -> None:
        self._write()

    def _finish_record(self) -> None:
        record, self._record = self._record, {}
        line = json.dumps(record).encode()
        self._lines.append(line + b"\n")
        self._list.append(self._lead + line)
        self._lead = b",\n"
        self._write()

    def _write(self) -> None:
        if self._aside:
            self._move_aside()
            self._aside = False
        line = json.dumps(self._record).encode() if self._record else b""
        self._lines.write(line + b"\n" if line else b"")
        self._list.write((self._lead + line if line else b"") + _CLOSING)


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, in increasing order of steps.

    It logs and leaves out truncated or damaged lines, and leaves out records that are followed by
    one of an earlier step.
    """
    path = Path(path)
    records: list[dict[str, Any]] = []
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("%s cannot be read: %s", path, error)
        return []
    for line in content.splitlines():
        try:
            record = json.loads(line)
            step, _ = (int(record[name]) for name in ("global_step", "epoch_num"))
        except (ValueError, TypeError, KeyError, RecursionError):
            logger.warning("a damaged line in %s is ignored: %r", path, line[:80])
            continue
        while records and records[-1]["global_step"] > step:
            records.pop()
        records.append(record)
    return records


def earlier_records(path: str | Path, run: RunInfo) -> list[dict[str, Any]]:
    """The records of the part of a run that is already done."""
    return [x for x in read_records(path) if run.is_before(x["global_step"], x["epoch_num"])]


def scalars_of(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The names and values of a record, without its step and epoch."""
    for name, value in record.items():
        if name not in WHEN and isinstance(value, int | float | None):
            yield name, math.nan if value is None else value

"""Scalars as JSON, for people's own scripts."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from towerpack.core import logger
from towerpack.core.files import atomic_file
from towerpack.monitor.base import MonitorBase, RunInfo


class JSONWriter(MonitorBase):
    """One record of all scalars per step at which some were put.

    `stats.jsonl` gets a line for each, appended: a crash loses at most the last line. `stats.json`
    holds the same records as one list, the format of old tools, and is completed at the end of
    every epoch by writing over its closing bracket. A run that goes on appends; a run that begins
    anew in the same directory moves the old files aside.
    """

    LINES = "stats.jsonl"
    LIST = "stats.json"

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._record: dict[str, Any] = {}

    @classmethod
    def load_existing_json(cls, directory: str | Path) -> list[dict[str, Any]]:
        """The records of an earlier run; an incomplete last line is left out."""
        path = Path(directory, cls.LINES)
        records = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                logger.warning("%s has an incomplete line, left out: %r", path, line[:80])
        return records

    def open(self, run: RunInfo) -> None:
        self._directory = run.directory
        if run.directory is None:
            return
        records = self.load_existing_json(run.directory)
        if records and records[-1].get("epoch_num", 0) + 1 != run.starting_epoch:
            for name in (self.LINES, self.LIST):
                if Path(run.directory, name).exists():
                    os.replace(Path(run.directory, name), Path(run.directory, f"{name}.old"))
            logger.info("the scalars of an earlier run are now in %s.old", self.LINES)
            records = []
        with atomic_file(Path(run.directory, self.LINES), "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        with atomic_file(Path(run.directory, self.LIST), "w") as file:
            file.write("[" + ",".join("\n" + json.dumps(record) for record in records) + "\n]\n")
        self._empty = not records

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        if self._record and self._record["global_step"] != step:
            self._write()
        self._record.setdefault("epoch_num", epoch)
        self._record.setdefault("global_step", step)
        # JSON has no NaN: null is what every reader understands.
        self._record[name] = value if math.isfinite(value) else None

    def flush(self, step: int, epoch: int) -> None:
        self._write()

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        record, self._record = self._record, {}
        if not record or self._directory is None:
            return
        line = json.dumps(record)
        with open(self._directory / self.LINES, "a") as file:
            file.write(line + "\n")
        with open(self._directory / self.LIST, "r+") as file:
            file.seek(0, os.SEEK_END)
            file.seek(file.tell() - len("\n]\n"))
            file.write(("\n" if self._empty else ",\n") + line + "\n]\n")
        self._empty = False

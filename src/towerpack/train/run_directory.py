"""The directory of a run: a new run moves the files of an earlier one aside."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from towerpack.callbacks import ModelSummary
from towerpack.core import logger
from towerpack.monitor import JSONWriter, RunRecord
from towerpack.monitor.files import FILE_MARK

_CHECKPOINT = re.compile(r"(.+)\.(data-\d{5}-of-\d{5}|manifest\.json|run\.json|meta)$")
_FILES = {
    *("checkpoint", JSONWriter.LINES, JSONWriter.LIST, RunRecord.FILE, RunRecord.TIMES),
    ModelSummary.FILE,
}


def move_earlier_run(directory: Path) -> None:
    """Moves the files of an earlier run, not those of users, to a directory beside this one.

    So curves and checkpoints of two runs never mix, and TensorBoard shows one run here.
    """
    files = run_files(directory)
    if not files:
        return
    latest = max(file.stat().st_mtime for file in files)
    stamp = time.strftime("%m%d-%H%M%S", time.localtime(latest))
    target, number = directory.with_name(f"{directory.name}.{stamp}"), 1
    while target.exists():
        target, number = directory.with_name(f"{directory.name}.{stamp}.{number}"), number + 1
    try:
        target.mkdir()
        for file in files:
            os.rename(file, target / file.name)
    except OSError as error:
        logger.warning("the earlier run in %s could not be moved aside: %s", directory, error)
        return
    logger.info(
        "%s has an earlier run, which this one does not resume: it is now in %s",
        directory,
        target,
    )


def run_files(directory: Path) -> list[Path]:
    """What an earlier run has written: events, scalars, facts, checkpoints and older logs."""
    names = sorted(file.name for file in directory.iterdir() if file.is_file())
    models = {match[1] for name in names if (match := _CHECKPOINT.match(name))}
    found = [
        name
        for name in names
        if name in _FILES
        or name.startswith(FILE_MARK)
        or _CHECKPOINT.match(name)
        or name.removesuffix(".index") in models
    ]
    if found:  # logs alone are of a process that trained nothing, such as a predictor
        found += [name for name in names if name.startswith(f"{logger.LOG_FILE}.")]
    return [directory / name for name in found]

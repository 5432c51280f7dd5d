"""Saving while training continues."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from towerpack.checkpoint.manifest import Manifest
from towerpack.checkpoint.store import recover, snapshot, write_checkpoint
from towerpack.core import logger
from towerpack.core.cluster import progress
from towerpack.core.run_lock import RunLock

FAILURES_IN_A_ROW = 3  # that are tolerated: a full disk may have space again in an hour
_NICENESS = 5  # of the writing thread: training has priority where cores are few
_BEAT_SECONDS = 1.0  # between two signs of life to the launcher
_NOTABLE_WAIT = 1.0  # seconds of waiting that are worth a line in the log


class CheckpointNotWritten(OSError):
    """Checkpoints could not be written several times in a row, or the last one could not."""


class BackgroundSaver:
    """Writes the current values of variables in a thread, one checkpoint at a time.

    `open` locks the directory for this run and removes what an interrupted save left there.
    `save` returns at once. If the previous checkpoint is still being written, it first waits for
    that, so that memory never holds more than one copy of the variables. A failed write is logged
    and counted (`failures`), and training continues. After three failures in a row, `save` raises
    `CheckpointNotWritten`, and so does `close` if the last write failed.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.waited = 0.0  # seconds that callers waited for the previous write
        self._in_a_row = 0
        self._last_error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._lock: RunLock | None = None

    def open(self, directory: Path) -> None:
        """Locks the directory; raises `DirectoryInUse` if another run saves to it."""
        self._lock = RunLock(directory)
        recover(directory)

    def save(
        self,
        prefix: Path,
        variables: Mapping[str, Any],
        *,
        run: Mapping[str, Any] | None = None,
        step: int | None = None,
        monitored: Mapping[str, float] | None = None,
        named: bool = False,
        then: Callable[[Manifest], None] | None = None,
    ) -> None:
        """Saves the current values; the thread calls `then` when everything is on the disk."""
        self.wait()
        if self._in_a_row >= FAILURES_IN_A_ROW:
            raise CheckpointNotWritten(
                f"the last {self._in_a_row} checkpoints could not be written to {prefix.parent}: "
                f"{self._last_error}"
            ) from self._last_error
        tensors = snapshot(variables)

        def write() -> None:
            _lower_priority()
            try:
                manifest = write_checkpoint(
                    prefix, tensors, run=run, step=step, monitored=monitored, named=named
                )
                if then is not None:
                    then(manifest)
            except Exception as error:  # noqa: BLE001 (logged here, raised by `save` or `close`)
                self._failed(prefix, error)
            else:
                self._in_a_row, self._last_error = 0, None
                logger.debug("saved %s", prefix)

        self._thread = threading.Thread(target=write, name="towerpack-checkpoint-writer")
        self._thread.start()

    def _failed(self, prefix: Path, error: Exception) -> None:
        self.failures += 1
        self._in_a_row += 1
        self._last_error = error
        logger.error(
            "%s could not be saved (%d failures in a row, %d in total); training continues, and "
            "earlier checkpoints are intact: %s: %s",
            prefix,
            self._in_a_row,
            self.failures,
            type(error).__name__,
            error,
        )

    def wait(self) -> None:
        """Waits until nothing is being written."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        started = time.monotonic()
        while thread.is_alive():
            thread.join(_BEAT_SECONDS)
            progress.keep_alive()  # a slow disk is no reason to restart this rank
        waited = time.monotonic() - started
        self.waited += waited
        if waited > _NOTABLE_WAIT:
            logger.info("training waited %.1f s for a checkpoint to be written", waited)

    def close(self) -> None:
        """Waits for the write in progress; raises if the last one failed.

        After a second Ctrl-C it does not wait: an unfinished write leaves no checkpoint.
        """
        if not isinstance(sys.exception(), KeyboardInterrupt):
            self.wait()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        error, self._last_error = self._last_error, None
        if error is not None:
            raise CheckpointNotWritten(
                f"the last checkpoint could not be written: {error}"
            ) from error


def _lower_priority() -> None:
    """Lowers the priority of this thread, where threads have their own priority."""
    if sys.platform == "linux":
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        except OSError as error:  # not permitted: the thread runs at normal priority
            logger.debug("the checkpoint writer keeps its priority: %s", error)

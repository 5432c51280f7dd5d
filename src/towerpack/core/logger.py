"""The log: coloured lines on the console, plain ones in `log.log` of the run's directory.

Use it as `from towerpack import logger; logger.info("...")`. Nothing is opened or configured until
the first message. `action` decides what happens to a directory that already has content:

| action | meaning |
| --- | --- |
| None | keep the files; a run that does not resume the earlier run moves them aside |
| 'k' | keep the files where they are in any case |
| 'b' | back up: rename the old directory with the date |
| 'd' | delete the old directory |
| 'n' | new: append the date and time to the name of the directory |
| 'q' | quit: raise FileExistsError |

Of several ranks that train together only the first, the chief, writes to the directory; the others
log to the console. A run that its launcher starts again keeps its directory with any `action`, but
with 'q' only if it has begun there.
Under a launcher, 'n' appends the name of the job to the directory, which is the same on all ranks.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from towerpack.core.cluster import this_cluster
from towerpack.core.run_lock import LOCK_FILE, RunLock

LOG_FILE = "log.log"
ONLY_IN_FILE = {"only_in_file": True}  # `extra` of a message that the console shows in another form
_ACTIONS = "kbdnq"
_COLOURS = {logging.DEBUG: "2", logging.INFO: "32", logging.WARNING: "33", logging.ERROR: "31"}
_START = "job {}, attempt "  # of a launcher, in the first line of a log
_logger = logging.getLogger("towerpack")
_directory: Path | None = None
_file_handler: _FileHandler | None = None
_lock: RunLock | None = None
_keeps_runs = False


class _Formatter(logging.Formatter):
    def __init__(self, coloured: Callable[[], bool]):
        super().__init__(datefmt="%m%d %H:%M:%S")
        self.coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        head = f"[{self.formatTime(record, self.datefmt)} @{record.filename}:{record.lineno}]"
        if self.coloured():
            head = f"\x1b[{_COLOURS.get(record.levelno, '31')}m{head}\x1b[0m"
        label = {logging.WARNING: "WRN ", logging.ERROR: "ERR ", logging.CRITICAL: "FATAL "}
        text = f"{head} {label.get(record.levelno, '')}{record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _ConsoleHandler(logging.Handler):
    """Writes to the present sys.stderr, or in a notebook to sys.stdout, since stderr is red there.

    If the console is closed or broken, the line is only in the log file.
    """

    def stream(self) -> Any:
        return sys.stdout if in_notebook() else sys.stderr

    def coloured(self) -> bool:
        try:
            stream = self.stream()
            return bool(stream and stream.isatty()) and "NO_COLOR" not in os.environ
        except ValueError:
            return False

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "only_in_file", False):
            return
        try:
            stream = self.stream()
            if stream is not None:
                stream.write(self.format(record) + "\n")
                stream.flush()
        except (OSError, ValueError):
            pass


class _FileHandler(logging.FileHandler):
    """Writes to `log.log`. If that fails, the run continues, and the console reports it once.

    The next line is another attempt. The first that succeeds reports how many lines are missing.
    """

    def __init__(self, path: Path):
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(_Formatter(lambda: False))
        self.addFilter(lambda record: not getattr(record, "only_on_console", False))
        self.failures = 0

    def emit(self, record: logging.LogRecord) -> None:
        before = self.failures
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened
            self.handleError(record)
        if before and self.failures == before:
            self.failures = 0
            _prepared().warning("%d lines of the log could not be written to this file", before)

    def handleError(self, record: logging.LogRecord) -> None:
        self.failures += 1
        if self.failures == 1:
            reason = sys.exception()
            text = "%s cannot be written, so lines will be missing in it; the run continues: %s"
            extra = {"only_on_console": True}
            _prepared().error(text, self.baseFilename, reason, extra=extra)

    def close(self) -> None:
        try:
            super().close()
        except OSError:  # the rest of its buffer is lost
            self.stream = None


def in_notebook() -> bool:
    return "ipykernel" in sys.modules


def _prepared() -> logging.Logger:
    """The logger with a console handler, which is added now unless the user configured one."""
    if not _logger.handlers:
        handler = _ConsoleHandler()
        handler.setFormatter(_Formatter(handler.coloured))
        _logger.addHandler(handler)
        _logger.propagate = False  # the root logger's handlers would print it twice
        if _logger.level == logging.NOTSET:
            _logger.setLevel(logging.INFO)
    return _logger


def debug(message: object, *args: object, **kwargs: Any) -> None:
    _prepared().debug(message, *args, stacklevel=2, **kwargs)


def info(message: object, *args: object, **kwargs: Any) -> None:
    _prepared().info(message, *args, stacklevel=2, **kwargs)


def warning(message: object, *args: object, **kwargs: Any) -> None:
    _prepared().warning(message, *args, stacklevel=2, **kwargs)


def error(message: object, *args: object, **kwargs: Any) -> None:
    _prepared().error(message, *args, stacklevel=2, **kwargs)


def exception(message: object, *args: object, **kwargs: Any) -> None:
    _prepared().exception(message, *args, stacklevel=2, **kwargs)


def critical(message: object, *args: object, **kwargs: Any) -> None:
    _prepared().critical(message, *args, stacklevel=2, **kwargs)


def set_level(level: int | str) -> None:
    _prepared().setLevel(level)


warn = warning
setLevel = set_level  # as in Python's logging


def set_logger_dir(dirname: str | Path, action: str | None = None) -> Path:
    """Makes `dirname` the directory of this run and logs to `log.log` in it.

    An older `log.log` there is renamed with its date. `action` (see above) decides what happens if
    the directory has content. The directory is locked until `close_log_file`, another call, or the
    end of this process. `DirectoryInUse` is raised if another run uses it. Returns the directory.
    """
    global _directory, _file_handler, _keeps_runs, _lock
    _keeps_runs = action == "k"
    action = action or "k"
    if action not in _ACTIONS:
        raise ValueError(f"expected an action of {', '.join(_ACTIONS)}, received {action!r}")
    directory = Path(os.path.abspath(os.path.expanduser(dirname)))
    close_log_file()
    cluster = this_cluster()
    if cluster is not None and cluster.job and action == "n":
        directory = directory.with_name(f"{directory.name}-{cluster.job}")
    if cluster and cluster.attempt and (action != "q" or _was_begun_by(cluster.job, directory)):
        action = "k"  # the run was begun before
    if cluster is not None and not cluster.is_chief:
        _directory = directory
        return directory
    if action == "n" and _has_content(directory):
        directory = _unused(directory.with_name(f"{directory.name}-{_stamp(time.time())}"))
    _lock = RunLock(directory)
    if action in "bdq" and _has_content(directory):
        try:
            _clear(directory, action)
        finally:
            _lock.release()
        _lock = RunLock(directory)
    path = directory / LOG_FILE
    if path.exists():
        path.rename(_unused(path.with_name(f"{LOG_FILE}.{_stamp(path.stat().st_mtime)}")))
    if not os.access(directory, os.W_OK):
        raise PermissionError(f"expected a writable directory, received {directory}")
    handler = _FileHandler(path)
    log = _prepared()
    log.addHandler(handler)
    _directory, _file_handler = directory, handler
    start = f" ({_START.format(cluster.job)}{cluster.attempt})" if cluster and cluster.job else ""
    info("Command line: %s%s", " ".join(sys.argv), start)
    return directory


def auto_set_dir(action: str | None = None, name: str | None = None) -> Path:
    """`set_logger_dir('train_log/<script>[-name]')`, where <script> is the file being run."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = Path(main).stem if main else "interactive"
    return set_logger_dir(Path("train_log", f"{script}-{name}" if name else script), action)


def get_logger_dir() -> str | None:
    """The directory of this run, or None if none has been set."""
    return str(_directory) if _directory else None


def keeps_runs() -> bool:
    """Whether the action 'k' was chosen, so that a new run does not move an earlier one aside."""
    return _keeps_runs


def close_log_file() -> None:
    """Closes the log file and unlocks the run's directory; logging continues on the console."""
    global _directory, _file_handler, _lock
    if _file_handler:
        _logger.removeHandler(_file_handler)
        _file_handler.close()
    if _lock:
        _lock.release()
    _directory = _file_handler = _lock = None


def _has_content(directory: Path) -> bool:
    return directory.is_dir() and any(entry.name != LOCK_FILE for entry in directory.iterdir())


def _was_begun_by(job: str, directory: Path) -> bool:
    """Whether the job of a launcher has logged to this directory."""
    start = _START.format(job).encode()
    return any(start in log.read_bytes() for log in directory.glob(f"{LOG_FILE}*"))


def _clear(directory: Path, action: str) -> None:
    if action == "q":
        raise FileExistsError(
            f"{directory} is not empty; choose another directory or another action of {_ACTIONS}"
        )
    if action == "d":
        shutil.rmtree(directory)
    elif action == "b":
        old = _unused(directory.with_name(f"{directory.name}.{_stamp(time.time())}"))
        directory.rename(old)
        info("the old %s was renamed to %s", directory.name, old)


def _stamp(seconds: float) -> str:
    return time.strftime("%m%d-%H%M%S", time.localtime(seconds))


def _unused(path: Path) -> Path:
    candidate, number = path, 1
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}.{number}"), number + 1
    return candidate

"""Short tracebacks: the console shows the frames of the user, and the log file all of them."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from towerpack.core import logger
from towerpack.core.cluster import is_chief

P = ParamSpec("P")
R = TypeVar("R")
LIBRARIES = ("towerpack", "tensorflow", "keras")
_LOGGED = "_towerpack_logged"


def folds_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Removes the frames of libraries from errors of `function` after logging the whole traceback.

    Without a log file, as on the ranks that are not the chief, nothing is removed.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            directory = logger.get_logger_dir()
            if directory is None or not is_chief():
                raise
            _log(error, Path(directory, logger.LOG_FILE))
            fold(error)
            raise  # the log file also has the frames of libraries

    return call


def _log(error: BaseException, path: Path) -> None:
    if isinstance(error, KeyboardInterrupt) or getattr(error, _LOGGED, False):
        return
    logger.error("the run failed:", exc_info=error, extra=logger.ONLY_IN_FILE)
    logger.error("the run failed; the whole traceback is in %s", path)
    setattr(error, _LOGGED, True)


def fold(error: BaseException) -> None:
    """Removes the frames of libraries from an error and from those that caused it."""
    roots, stdlib = _roots(), sysconfig.get_path("stdlib")
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        waiting += [current.__cause__, current.__context__]
        current.__traceback__ = _kept(current.__traceback__, roots, stdlib)


def _kept(
    traceback: TracebackType | None, roots: tuple[str, ...], stdlib: str
) -> TracebackType | None:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        file = each.tb_frame.f_code.co_filename
        is_stdlib = file.startswith((stdlib, "<frozen")) and "-packages" not in file
        if not is_stdlib and not file.startswith(roots):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _roots() -> tuple[str, ...]:
    modules = [sys.modules[name] for name in LIBRARIES if name in sys.modules]
    return tuple(f"{path}/" for module in modules for path in getattr(module, "__path__", ()))

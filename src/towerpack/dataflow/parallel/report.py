"""What a worker tells about a task beside the datapoints: drops, errors, positions, statistics."""

from __future__ import annotations

import json
import os
import pickle
import traceback
from typing import Any

import cloudpickle
import msgspec

import towerpack
from towerpack.dataflow.parallel.work import Result


class FrozenError(msgspec.Struct, array_like=True):
    """An exception on its way to the parent."""

    pickled: bytes | None  # None for one that cannot be pickled
    name: str
    message: str
    trace: str  # the worker's own traceback, as text


class Report(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a worker tells the parent about one task."""

    rows: int = 0  # made, dropped ones included
    dropped: list[int] = []  # offsets of those; msgspec copies the default
    error: FrozenError | None = None
    skipped: list[str] = []
    before: str | None = None  # JSON: the position of a stream
    ended: bool = False
    statistics: list[list[int]] | None = None
    memory: int = 0  # bytes of the worker's own

    @classmethod
    def of(cls, result: Result) -> Report:
        return cls(
            rows=len(result.rows),
            dropped=[i for i, row in enumerate(result.rows) if row is None],
            error=None if result.error is None else freeze_error(result.error),
            skipped=result.skipped,
            before=None if result.before is None else json.dumps(result.before),
            ended=result.ended,
        )

    def is_usual(self, asked: int) -> bool:
        """Whether there is nothing to tell but that all datapoints were made."""
        return self == Report(rows=asked)

    def cut(self, kept: int) -> None:
        """Only the first `kept` of the datapoints that were not dropped could be sent."""
        dropped = set(self.dropped)
        made = 0
        while kept or made in dropped:
            kept -= made not in dropped
            made += 1
        self.rows, self.dropped, self.ended = made, [i for i in self.dropped if i < made], False


encode_report = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Report)


def decode_report(data: bytes) -> Report:
    return _decoder.decode(data)


_PACKAGE = os.path.dirname(towerpack.__file__) + os.sep


class WorkerError(RuntimeError):
    """An error of a worker whose own exception could not be brought here; its words could."""


def freeze_error(error: BaseException) -> FrozenError:
    summary = traceback.TracebackException.from_exception(error)
    # The notes travel with the exception; and how we came to the user's code tells him nothing.
    summary.__notes__ = None
    *way, last = summary.stack or [None]
    frames = [frame for frame in way if frame and not frame.filename.startswith(_PACKAGE)]
    summary.stack = traceback.StackSummary.from_list([*frames, last] if last else [])
    trace = "".join(summary.format())
    try:
        pickled = cloudpickle.dumps(error)
    except Exception:  # noqa: BLE001 (then its words must do)
        pickled = None
    return FrozenError(pickled, type(error).__qualname__, str(error), trace)


def thaw_error(frozen: FrozenError, where: str) -> BaseException:
    """The exception, of its own type, with the worker's traceback as a note."""
    error: Any = None
    if frozen.pickled is not None:
        try:
            error = pickle.loads(frozen.pickled)  # noqa: S301 (from our own worker)
        except Exception:  # noqa: BLE001 (many can be pickled, but not made again)
            error = None
    if not isinstance(error, BaseException):
        error = WorkerError(f"{frozen.name}: {frozen.message}")
    error.add_note(f"{where}; its traceback:\n{frozen.trace.rstrip()}")
    thawed: BaseException = error
    return thawed

"""What the supervisors of all nodes agree on after each attempt: whether another one follows."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from towerpack.core.cluster import FATAL_CODE

LONGEST_BACK_OFF = 30.0  # seconds
FIRST_ATTEMPT = "TOWERPACK_FIRST_ATTEMPT"  # JOB:NUMBER, where launchers are started again
PYTHON_ERROR = 1  # the exit code of Python after an exception that the script did not catch


class RendezvousError(RuntimeError):
    """The supervisors could not meet; the message names what is missing or wrong."""


@dataclass(frozen=True)
class Failure:
    """How a rank failed. `code` is the exit code that it causes; `time` is seconds since 1970."""

    rank: int
    host: str
    time: float
    code: int
    text: str
    secondary: bool = False  # it only follows from the loss of another rank


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: all ranks are done, they ask for a restart, or one failed."""

    kind: Literal["done", "restart", "failed"]
    began: bool = True  # a rank reached its first step
    failure: Failure | None = None

    def summary(self) -> str:
        """One line for the log."""
        if self.failure is not None:
            return self.failure.text.partition("\n")[0].removesuffix(":")
        return "all ranks are done" if self.kind == "done" else "ranks were asked to end, and saved"

    @staticmethod
    def joined(outcomes: Sequence[Outcome]) -> Outcome:
        """The outcome on all hosts, with the failure that came first."""
        failures = [each.failure for each in outcomes if each.failure]
        kinds = {each.kind for each in outcomes}
        kind: Literal["done", "restart", "failed"] = (
            "failed" if "failed" in kinds else "restart" if "restart" in kinds else "done"
        )
        began = any(each.began for each in outcomes)
        return Outcome(kind, began, first(failures) if failures else None)


def first(failures: Sequence[Failure]) -> Failure:
    """The failure that caused the others, which may have been reported before it."""
    return min(failures, key=lambda failure: (failure.secondary, failure.time))


@dataclass(frozen=True)
class Entry:
    """What the supervisor of a node brings to a meeting: its free addresses, the last outcome."""

    node: int
    addresses: list[str] = field(default_factory=list)
    attempt: int = -1  # the last that it took part in
    outcome: Outcome | None = None
    token: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome is not None and self.outcome.kind == "failed"

    @staticmethod
    def first(node: int, environ: MutableMapping[str, str]) -> Entry:
        """Of a launcher that has just started; another program may have counted attempts before."""
        job, _, number = environ.pop(FIRST_ATTEMPT, ":0").partition(":")
        return Entry(node, attempt=int(number) - 1, token=f"{job}-" if job else "")


@dataclass(frozen=True)
class Plan:
    """What all supervisors do next. With `end`, the reason, they start no other attempt."""

    addresses: list[list[str]]  # of each node's ranks
    attempt: int
    token: str
    outcome: Outcome | None
    end: str = ""
    delay: float = 0.0


class Meeting(Protocol):
    """How the supervisors of all nodes agree on what follows."""

    def agree(self, entry: Entry, ranks: int) -> Plan:
        """Fills in free addresses for this number of ranks, and waits for the other nodes."""
        ...

    def peers(self) -> Sequence[socket.socket]:
        """Connections to other nodes; one is closed there when the ranks there have failed."""
        ...


class Restarts:
    """Decides after each attempt whether another one follows, for the supervisors of all nodes.

    `job` names this start of the job: when it was, and a random number. If node 0 was itself
    restarted, the others know the name.
    """

    def __init__(self, allowed: int):
        self.allowed, self.used, self.job = allowed, 0, ""
        self._last = ""  # the error of the last attempt, if it ended before the first step
        self._fruitless = 0  # attempts in a row in which no rank reached its first step

    def plan(self, entries: Sequence[Entry]) -> Plan:
        names = (entry.token.rpartition("-")[0] for entry in entries)
        self.job = self.job or next(filter(None, names), "") or new_name()
        attempt = max(entry.attempt for entry in entries) + 1
        addresses = [entry.addresses for entry in sorted(entries, key=lambda each: each.node)]
        token = f"{self.job}-{attempt}"
        outcomes = [entry.outcome for entry in entries if entry.outcome]
        if not outcomes:
            return Plan(addresses, attempt, token, None)
        outcome = Outcome.joined(outcomes)
        if end := self._reason_to_end(outcome):
            return Plan(addresses, attempt, token, outcome, end)
        self.used += 1
        self._fruitless = 0 if outcome.began else self._fruitless + 1
        delay = min(2.0 ** max(0, self._fruitless - 1), LONGEST_BACK_OFF)
        return Plan(addresses, attempt, token, outcome, delay=delay)

    def _reason_to_end(self, outcome: Outcome) -> str:
        if outcome.kind == "done":
            return "all ranks are done"
        failure = outcome.failure
        if failure and failure.code == FATAL_CODE:
            return f"exit code {FATAL_CODE} means wrong use, which a restart cannot cure"
        error = _early_error(outcome)
        if error and error == self._last:
            return "the same error came twice before the first step"
        self._last = error
        if self.used >= self.allowed:
            return f"{self.used} of {self.allowed} restarts (--max-restarts) are used"
        return ""


def _early_error(outcome: Outcome) -> str:
    """The text of a Python error before the first step, without what differs between attempts.

    Empty for anything else, and for an error that only follows from the loss of another rank.
    """
    failure = outcome.failure
    if failure is None or outcome.began or failure.secondary or failure.code != PYTHON_ERROR:
        return ""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", failure.text)


def new_name() -> str:
    """A name for a start of a job."""
    return f"{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(3)}"

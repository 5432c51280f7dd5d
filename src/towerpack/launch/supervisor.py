"""Starts the ranks of this host, checks on them, and starts them again until they are done."""

from __future__ import annotations

import contextlib
import re
import secrets
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol

from towerpack.core import logger
from towerpack.core.cluster import FATAL_CODE, RESTART_CODE, STACKS_SIGNAL, Cluster
from towerpack.core.processes import NO_DESCRIPTOR
from towerpack.launch.ranks import STOP_SIGNALS, Failure, RankProcess

GRACE_SECONDS = 2.0  # for the peers of a failed rank to report what they see of it
POLL_SECONDS = 0.2  # only where a process has no pidfd
LONGEST_BACK_OFF = 30.0
MOST_REVIVALS = 10  # of workers of parameter servers, in an attempt; then all ranks start again


class RendezvousError(RuntimeError):
    """The supervisors could not meet; the message names what is missing or wrong."""


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
        return Outcome(kind, began, min(failures, key=_order) if failures else None)


def _order(failure: Failure) -> tuple[bool, float]:
    """A failure that follows from another may be reported before it."""
    return failure.secondary, failure.time


@dataclass(frozen=True)
class Entry:
    """What the supervisor of a node brings to a meeting: its free addresses, the last outcome."""

    node: int
    addresses: list[str] = field(default_factory=list)
    attempt: int = -1  # the last that it took part in
    outcome: Outcome | None = None
    token: str = ""


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


class Restarts:
    """Decides after each attempt whether another one follows, for the supervisors of all nodes.

    `job` names this start of the job. If node 0 was itself restarted, the others know the name.
    """

    def __init__(self, allowed: int):
        self.allowed, self.used, self.job = allowed, 0, ""
        self._last = ""  # the error of the last attempt, if it ended before the first step

    def plan(self, entries: Sequence[Entry]) -> Plan:
        names = (entry.token.rpartition("-")[0] for entry in entries)
        self.job = self.job or next(filter(None, names), secrets.token_hex(8))
        attempt = max(entry.attempt for entry in entries) + 1
        addresses = [entry.addresses for entry in sorted(entries, key=lambda each: each.node)]
        token = f"{self.job}-{attempt}"
        outcomes = [entry.outcome for entry in entries if entry.outcome]
        if not outcomes:
            return Plan(addresses, attempt, token, None)
        outcome = Outcome.joined(outcomes)
        if end := self._reason_to_end(outcome):
            return Plan(addresses, attempt, token, outcome, end)
        delay = min(2.0**self.used, LONGEST_BACK_OFF)
        self.used += 1
        return Plan(addresses, attempt, token, outcome, delay=delay)

    def _reason_to_end(self, outcome: Outcome) -> str:
        if outcome.kind == "done":
            return "all ranks are done"
        failure = outcome.failure
        if failure and failure.code == FATAL_CODE:
            return f"exit code {FATAL_CODE} means wrong use, which a restart cannot cure"
        early = failure is not None and failure.is_python_error() and not outcome.began
        # Ports and times differ from one attempt to the next.
        error = re.sub(r"\d+", "#", failure.text) if failure and early else ""
        if error and error == self._last:
            return "the same error came twice before the first step"
        self._last = error
        if self.used >= self.allowed:
            return f"{self.used} of {self.allowed} restarts (--max-restarts) are used"
        return ""


class Supervisor:
    """Runs `command` as `nproc` ranks on this host, together with the other nodes of the meeting.

    `run` returns the exit code: 0 if all ranks are done, 130 or 143 after SIGINT or SIGTERM,
    otherwise that of the first rank that failed. It must be called in the main thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        nproc: int,
        node: int,
        meeting: Meeting,
        logs: Path,
        hang_seconds: float,
        servers: int = 0,
    ):
        self.command, self.nproc, self.node, self.meeting = command, nproc, node, meeting
        self.logs, self.hang_seconds, self.servers = logs, hang_seconds, servers
        self.host = socket.gethostname()
        self._ranks: list[RankProcess] = []
        self._stops: list[int] = []  # the signals that were received

    def run(self) -> int:
        self.logs.mkdir(parents=True, exist_ok=True)
        logger.info("the output of each rank is in %s/rank-N.log", self.logs)
        with (
            tempfile.TemporaryDirectory(prefix="towerpack-launch-") as private,
            self._signals(),
        ):
            try:
                return self._run(Path(private))
            finally:
                self._kill_all()

    def _run(self, private: Path) -> int:
        entry = Entry(self.node)
        while True:
            try:
                plan = self.meeting.agree(entry, self.nproc)
            except RendezvousError as error:
                if entry.outcome is None:
                    raise
                logger.error("%s", error)
                plan = Plan([], entry.attempt, entry.token, entry.outcome, "nodes are missing")
            if plan.outcome is not None:
                _report(plan, plan.outcome)
                if plan.end:
                    return _exit_code(plan.outcome)
            time.sleep(plan.delay)
            outcome = self._attempt(plan, private)
            if self._stops:
                return self._exit_after_stop(outcome)
            if len(plan.addresses) > 1:  # the others may take a while to come to the rendezvous
                logger.info("attempt %d on this node: %s", plan.attempt, outcome.summary())
            entry = Entry(self.node, [], plan.attempt, outcome, plan.token)

    def _attempt(self, plan: Plan, private: Path) -> Outcome:
        """Runs all ranks of this host to their end."""
        addresses = tuple(address for node in plan.addresses for address in node)
        first = sum(len(node) for node in plan.addresses[: self.node])
        self._ranks, self._revivals = [], 0
        for rank in range(first, first + self.nproc):
            if self._stops:
                break
            log = self.logs / f"rank-{rank}.log"
            cluster = Cluster(
                addresses, rank, "towerpack launch", plan.token, plan.attempt, self.servers
            )
            self._ranks.append(RankProcess(self.command, cluster, self.host, log, private))
        if self._stops:  # a rank that was being started did not receive it
            self._kill_all()
        self._watch()
        ranks, self._ranks = self._ranks, []
        return _outcome(ranks)

    def _watch(self) -> None:
        """Returns when all ranks have ended; kills the others some time after one has failed."""
        deadline: float | None = None  # the end of the grace period
        while running := [rank for rank in self._ranks if not rank.poll()]:
            if self.servers and deadline is None and not self._stops:
                running += self._revive()
            now = time.monotonic()
            if deadline is None and (
                self._hung(running, now) or self._failed() or self._left_by_chief()
            ):
                deadline = now + GRACE_SECONDS
            if deadline is not None and now >= deadline:
                for rank in running:
                    rank.kill()
                deadline = now + GRACE_SECONDS  # for the kernel, on an overloaded machine
            self._wait(running, now, deadline)

    def _revive(self) -> list[RankProcess]:
        """Starts workers of parameter servers again that have died: the others do not need them."""
        revived = []
        for number, rank in enumerate(self._ranks):
            lost = rank.code is not None and rank.cluster.rank > self.servers
            if lost and not self._left_by_chief() and self._revivals < MOST_REVIVALS:
                if (failure := rank.failure()) is None:
                    continue
                logger.warning("%s; it starts again, alone", failure.text)
                self._revivals += 1
                self._ranks[number] = rank.again()
                revived.append(self._ranks[number])
        return revived

    def _left_by_chief(self) -> bool:
        """Whether only parameter servers and workers are left, since the chief has ended."""
        chief = self._ranks[0]
        return bool(self.servers) and chief.cluster.is_chief and chief.code is not None

    def _failed(self) -> bool:
        """Whether a rank failed. While ranks save because of a signal, they are left alone."""
        ended = [rank for rank in self._ranks if rank.code is not None]
        return not self._stops and not all(rank.ended_well() for rank in ended)

    def _hung(self, running: Sequence[RankProcess], now: float) -> bool:
        """Whether a rank makes no progress; the one that stopped first is marked as hung."""
        if not self.hang_seconds:
            return False
        since = {rank: moment for rank in running if (moment := rank.idle_since()) is not None}
        if not since or now - min(since.values()) < self.hang_seconds:
            return False
        hung = min(since, key=lambda rank: since[rank])
        hung.mark_hung(since[hung])
        for rank in running:  # its peers wait for it, and their stacks show where
            rank.killed = True  # one that is not prepared for the signal ends by it
            rank.send(STACKS_SIGNAL)
        return True

    def _wait(self, running: Sequence[RankProcess], now: float, deadline: float | None) -> None:
        """Waits until a rank ends or prints, or something is due; passes on the chief's output."""
        due = [deadline] if deadline is not None else []
        if self.hang_seconds and deadline is None:
            idle = [rank.idle_since() for rank in running]
            due += [since + self.hang_seconds for since in idle if since is not None]
        if any(rank.sentinel == NO_DESCRIPTOR for rank in running):
            due.append(now + POLL_SECONDS)
        with selectors.DefaultSelector() as selector:
            for rank in running:
                if rank.sentinel != NO_DESCRIPTOR:
                    selector.register(rank.sentinel, selectors.EVENT_READ)
                for pipe in rank.pipes:
                    selector.register(pipe, selectors.EVENT_READ, rank)
            # A pipe of an ended rank is read to its end by `poll`.
            events = selector.select(max(0.0, min(due) - now) if due else None)
        for key, _ in events:
            if key.data is not None:
                key.data.relay(key.fd)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Passes a signal on to all ranks; the third one kills them."""
        self._stops.append(number)
        if not self._ranks:  # between two attempts
            raise SystemExit(128 + self._stops[0])
        logger.warning(
            "%s: passed on to %d ranks, which finish the step and save; again, they end at once; "
            "a third time, they are killed",
            signal.Signals(number).name,
            len(self._ranks),
        )
        for rank in self._ranks:
            if len(self._stops) > 2:
                rank.kill()
            else:
                rank.send(number)

    def _exit_after_stop(self, outcome: Outcome) -> int:
        if outcome.failure is None:
            return 128 + self._stops[0]
        logger.error("%s", outcome.failure.text)
        return outcome.failure.code

    def _kill_all(self) -> None:
        for rank in self._ranks:
            rank.kill()


def _outcome(ranks: Sequence[RankProcess]) -> Outcome:
    began = any(rank.began() for rank in ranks)
    failures = [failure for rank in ranks if (failure := rank.failure())]
    if failures:
        return Outcome("failed", began, min(failures, key=_order))
    asked = any(rank.code for rank in ranks if not rank.killed)
    return Outcome("restart" if asked else "done", began)


def _exit_code(outcome: Outcome) -> int:
    if outcome.failure is not None:
        return outcome.failure.code
    return 0 if outcome.kind == "done" else RESTART_CODE


def _report(plan: Plan, outcome: Outcome) -> None:
    """The failure comes first, since it is what a reader of the console looks for."""
    if outcome.failure is not None:
        logger.error("%s", outcome.failure.text)
    elif outcome.kind == "restart":
        logger.warning("a rank was asked to end or to restart; all ranks have saved")
    if plan.end:
        logger.info("the run ends: %s", plan.end)
    else:
        logger.info("all ranks start again in %g s: attempt %d", plan.delay, plan.attempt)

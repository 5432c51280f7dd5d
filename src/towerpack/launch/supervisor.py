"""Starts the ranks of this host, checks on them, and starts them again until they are done."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from towerpack.core import logger
from towerpack.core.cluster import RESTART_CODE, STACKS_SIGNAL, Cluster
from towerpack.core.processes import NO_DESCRIPTOR
from towerpack.launch.guard import Guard
from towerpack.launch.ranks import STOP_SIGNALS, RankProcess
from towerpack.launch.restarts import Entry, Meeting, Outcome, Plan, RendezvousError, first

GRACE_SECONDS = 2.0  # for the peers of a failed rank to report what they see of it
POLL_SECONDS = 0.2  # only where a process has no pidfd
MOST_RETURNS = 10  # of replaceable ranks, in an attempt; then all ranks start again
# Of the first signal, the second and all others.
EFFECTS = (
    "which finish the step and save; again, they end at once; a third time, they are killed",
    "which end at once; a third time, they are killed",
    "which are killed",
)


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
        self._reported_stops = 0
        self._between_attempts = True
        self._given_up: list[str] = []  # the ranks that were killed after another one had failed
        self._lost_node = False

    def run(self) -> int:
        with (
            self._signals(),
            tempfile.TemporaryDirectory(prefix="towerpack-launch-") as private,
            contextlib.closing(Guard()) as guard,
        ):
            self.logs.mkdir(parents=True, exist_ok=True)
            logger.info("the output of each rank is in %s/rank-N.log", self.logs)
            cores = os.cpu_count() or 1
            if self.nproc > cores:
                text = "%d ranks share %d cores: on the CPU, fewer (--nproc) would be as fast"
                logger.warning(text, self.nproc, cores)
            try:
                return self._run(Path(private), guard)
            finally:
                for rank in self._ranks:
                    rank.kill()

    def _run(self, private: Path, guard: Guard) -> int:
        entry = Entry.first(self.node, os.environ)
        while True:
            try:
                plan = self.meeting.agree(entry, self.nproc)
            except RendezvousError as error:
                if entry.outcome is None:
                    raise
                logger.error("%s", error)
                plan = Plan([], entry.attempt, entry.token, entry.outcome, "nodes are missing")
            if plan.outcome is not None:
                _report(plan, plan.outcome, self._given_up)
                if plan.end:
                    return _exit_code(plan.outcome)
            time.sleep(plan.delay)
            outcome = self._attempt(plan, private, guard)
            if self._stops:
                return self._exit_after_stop(outcome)
            if len(plan.addresses) > 1:  # the others may take a while to come to the rendezvous
                logger.info("attempt %d on this node: %s", plan.attempt, outcome.summary())
            entry = Entry(self.node, [], plan.attempt, outcome, plan.token)

    def _attempt(self, plan: Plan, private: Path, guard: Guard) -> Outcome:
        """Runs all ranks of this host to their end."""
        addresses = tuple(address for node in plan.addresses for address in node)
        lowest = sum(len(node) for node in plan.addresses[: self.node])
        self._between_attempts = self._lost_node = False
        self._given_up = []
        for rank in range(lowest, lowest + self.nproc):
            if self._stops:
                break
            log = self.logs / f"rank-{rank}.log"
            place = rank, "towerpack launch", plan.token, plan.attempt, self.servers
            cluster = Cluster(addresses, *place)
            self._ranks.append(RankProcess(self.command, cluster, self.host, log, private, guard))
        if self._stops:  # a rank that was being started did not receive it
            for started in self._ranks:
                started.kill()
        self._watch()
        outcome = _outcome(self._ranks)
        self._ranks = []
        self._between_attempts = True
        return outcome

    def _watch(self) -> None:
        """Returns when all ranks have ended; kills the others some time after one has failed."""
        deadline: float | None = None  # the end of the grace period
        returns = 0
        while running := [rank for rank in self._ranks if not rank.poll()]:
            self._report_stops(len(running))
            now = time.monotonic()
            over = self._failed() or self._left_by_chief()
            if deadline is None and not over and returns < MOST_RETURNS and self._return_one():
                returns += 1
                continue
            if deadline is None and (
                over or self._hung(running, now) or self._lost() or self._waits()
            ):
                deadline = now + GRACE_SECONDS
            if deadline is not None and now >= deadline:
                if not self._left_by_chief():
                    self._given_up = self._given_up or [rank.describe_kill() for rank in running]
                for rank in running:
                    rank.kill()
                deadline = now + GRACE_SECONDS  # for the kernel, on an overloaded machine
            self._wait(running, now, deadline)

    def _failed(self) -> bool:
        """Whether a rank failed. While ranks save because of a signal, they are left alone."""
        needed = (rank for rank in self._ranks if not rank.cluster.is_replaceable)
        return not self._stops and any(rank.failure for rank in needed)

    def _left_by_chief(self) -> bool:
        """Whether only servers are left, which have nothing to do after the chief has ended."""
        chief = self._ranks[0]
        return bool(self.servers) and chief.cluster.is_chief and chief.code is not None

    def _lost(self) -> bool:
        """Whether a replaceable rank failed."""
        return not self._stops and any(rank.failure for rank in self._ranks)

    def _return_one(self) -> bool:
        """Starts a replaceable rank that failed again, by itself."""
        for number, rank in enumerate(self._ranks):
            if rank.failure is not None and rank.cluster.is_replaceable and not self._stops:
                logger.warning("%s\nit starts again, by itself", rank.failure.text)
                self._ranks[number] = rank.again()
                return True
        return False

    def _waits(self) -> bool:
        """Whether the ranks here would wait an hour for those of another node, which have ended.

        After the first step TensorFlow itself notices that, within seconds.
        """
        if self._stops or not self._lost_node or any(rank.began() for rank in self._ranks):
            return False
        logger.warning("the ranks of another node have ended before the first step")
        return True

    def _hung(self, running: Sequence[RankProcess], now: float) -> bool:
        """Whether a rank makes no progress; the one that stopped first is marked as hung.

        Its peers wait for it, and their last steps often are the same. So all stacks are printed.
        """
        if not self.hang_seconds:
            return False
        since = {rank: moment for rank in running if (moment := rank.idle_since()) is not None}
        if not since or now - min(since.values()) < self.hang_seconds:
            return False
        hung = min(since, key=lambda rank: since[rank])
        hung.mark_hung(since[hung], self.hang_seconds)
        for rank in running:
            rank.killed = True  # one that is not prepared for the signal ends by it
            rank.send(STACKS_SIGNAL)
        return True

    def _wait(self, running: Sequence[RankProcess], now: float, deadline: float | None) -> None:
        """Waits until a rank ends or prints, or something is due; passes on the chief's output."""
        due = [deadline] if deadline is not None else []
        if self.hang_seconds and deadline is None:
            # One that is not idle may hang later, and nothing else would end this wait.
            idle = [rank.idle_since() for rank in running]
            due += [(now if since is None else since) + self.hang_seconds for since in idle]
        if any(rank.sentinel == NO_DESCRIPTOR for rank in running):
            due.append(now + POLL_SECONDS)
        with selectors.DefaultSelector() as selector:
            selector.register(self._signalled, selectors.EVENT_READ)
            for rank in running:
                if rank.sentinel != NO_DESCRIPTOR:
                    selector.register(rank.sentinel, selectors.EVENT_READ)
                for pipe in rank.pipes:
                    selector.register(pipe, selectors.EVENT_READ, rank)
            peers = [] if self._lost_node else self.meeting.peers()
            for peer in peers:
                selector.register(peer, selectors.EVENT_READ)
            # A pipe of an ended rank is read to its end by `poll`.
            events = selector.select(max(0.0, min(due) - now) if due else None)
        for key, _ in events:
            if key.fileobj is self._signalled:
                self._signalled.recv(1)
            self._lost_node |= key.fileobj in peers
            if key.data is not None:
                key.data.relay(key.fd)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        self._signalled, sender = socket.socketpair()
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(NO_DESCRIPTOR)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._signalled.close()
            sender.close()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Passes a signal on to all ranks; the third one kills them. It logs nothing.

        The signal may have come while a line was being logged.
        """
        self._stops.append(number)
        if self._between_attempts:
            raise SystemExit(128 + self._stops[0])
        for rank in self._ranks:
            if len(self._stops) > 2:
                rank.kill()
            else:
                rank.send(number)

    def _report_stops(self, running: int) -> None:
        if self._reported_stops == len(self._stops):
            return
        self._reported_stops = len(self._stops)
        name = signal.Signals(self._stops[-1]).name
        effect = EFFECTS[min(len(self._stops), len(EFFECTS)) - 1]
        logger.warning("%s: passed on to %d ranks, %s", name, running, effect)

    def _exit_after_stop(self, outcome: Outcome) -> int:
        if outcome.failure is None:
            return 128 + self._stops[0]
        logger.error("%s", outcome.failure.text)
        return outcome.failure.code


def _outcome(ranks: Sequence[RankProcess]) -> Outcome:
    began = any(rank.began() for rank in ranks)
    failures = [rank.failure for rank in ranks if rank.failure]
    if failures:
        return Outcome("failed", began, first(failures))
    asked = any(rank.code for rank in ranks if not rank.killed)
    return Outcome("restart" if asked else "done", began)


def _exit_code(outcome: Outcome) -> int:
    if outcome.failure is not None:
        return outcome.failure.code
    return 0 if outcome.kind == "done" else RESTART_CODE


def _report(plan: Plan, outcome: Outcome, given_up: Sequence[str]) -> None:
    """The failure comes first, since it is what a reader of the console looks for."""
    if outcome.failure is not None:
        logger.error("%s", outcome.failure.text)
    elif outcome.kind == "restart":
        logger.warning("a rank was asked to end or to restart; all ranks have saved")
    for rank in given_up:  # the one that was stopped may be the cause
        logger.warning("%s", rank)
    if plan.end:
        logger.info("the run ends: %s", plan.end)
    else:
        logger.info("all ranks start again in %g s: attempt %d", plan.delay, plan.attempt)

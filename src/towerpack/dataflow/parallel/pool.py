"""Worker processes that do tasks: kept alive, watched, and gone without a trace at the end.

No thread: everything happens when the consumer asks for the next datapoint. Each worker has a
channel of its own and is sent a few tasks ahead, so that it has work while the consumer is away.

A worker that dies is replaced and its tasks are sent again, the one it was at *carefully*: datapoint
by datapoint, each announced in shared memory. So the stream does not change, and should a datapoint
kill its worker again, its index is known.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from towerpack.core import launcher, logger, payload
from towerpack.core.processes import describe_exit, is_stopped
from towerpack.core.worker_process import NO_DESCRIPTOR
from towerpack.dataflow.parallel.messages import (
    CAREFULLY,
    HELLO_SIZE,
    KEPT,
    REPLY_SIZE,
    RESTORE,
    ReplyMessage,
    TaskMessage,
    pack_task,
    unpack_replies,
)
from towerpack.dataflow.parallel.packing import Place, RowReader, pack_rows
from towerpack.dataflow.parallel.report import Report, decode_report, thaw_error
from towerpack.dataflow.parallel.ring import MAX_SLOTS, Pins, SharedSlots, SlotWriter
from towerpack.dataflow.parallel.tasks import Chunk, Task
from towerpack.dataflow.parallel.work import Work
from towerpack.dataflow.parallel.worker import BOARD, BOARD_BYTES, ENTRY
from towerpack.dataflow.statistics import WorkerStatistics

DEPTH = 3  # tasks sent ahead to each worker: one under way, the next at hand, one to spare
MAX_DEATHS = 3  # in
DEATH_SECONDS = 60.0
STOPPED_SECONDS = 5.0  # a stopped worker (SIGSTOP) does not come back by itself
TICK_SECONDS = 1.0  # how often to look after workers while waiting for them
RECEIVE_BYTES = 1 << 14
EXIT_SECONDS = 5.0  # for the kernel to end a killed process, also on a machine without breath
GRACE_SECONDS = 0.2  # for workers to leave by themselves, closing what they had open
HELD_BYTES = 1 << 28  # 256 MB of slots the consumer may hold; of more it gets copies
HELD_SLOTS = 2  # which it may hold in any case: the last batch, and the one before


class WorkerDied(RuntimeError):
    """Workers die again and again. Says how, which worker, and what it was working on."""

    def __init__(self, message: str, worker: int = -1, status: int | None = None):
        super().__init__(message)
        self.worker, self.status = worker, status


class _Member:
    """A place in the pool: a worker, its channel, and what it has been asked for."""

    def __init__(self, number: int):
        self.number = number
        self.child: launcher.Child | None = None
        self.channel: socket.socket | None = None
        self.received = bytearray()
        self.tasks: deque[tuple[int, Task]] = deque()  # by number, oldest first
        self.free_slots: list[int] = []  # that this worker used last: its pages know them
        self.waited = 0.0  # seconds that the consumer has waited for its oldest task
        self.stopped = 0.0  # seconds of them that it was seen stopped
        self.busy = self.idle = 0  # nanoseconds
        self.datapoints = self.memory = 0
        self.snapshot: list[list[int]] | None = None
        self.position: str | None = None  # of a stream, after its latest reply


class _Reply:
    __slots__ = ("member", "message", "report", "slot")

    def __init__(self, member: _Member, slot: int, message: ReplyMessage, report: Report):
        self.member, self.slot, self.message, self.report = member, slot, message, report


class ProcessExecutor:
    """Runs a work object in `workers` processes."""

    def __init__(
        self,
        work: Work,
        workers: int,
        name: str,
        start_method: str,
        timeout: float | None,
        on_statistics: Callable[[list[list[int]], list[list[int]] | None], None] | None = None,
    ):
        self.workers, self.name = workers, name
        self._work, self._method, self._timeout = work, start_method, timeout
        self._on_statistics = on_statistics
        self._tick = TICK_SECONDS if not timeout else min(TICK_SECONDS, timeout / 4)
        self._owner = os.getpid()
        self._numbers = 0
        self._slots_of: dict[int, tuple[int, int | None]] = {}  # by task number
        self._next_slot = BOARD + 1
        self._deaths: deque[float] = deque()
        self._pins = Pins()
        self._user_of: dict[int, _Member] = {}  # by slot
        self._reader = RowReader()
        self._selector: selectors.BaseSelector | None = None
        self._finished = 0
        self._packed: int | None = None
        self._slots = SharedSlots.create()
        self._members = [_Member(number) for number in range(workers)]
        try:
            self._board = self._slots.root(BOARD, BOARD_BYTES).view(np.int64)
            if start_method != "fork":
                self._packed = payload.pack(work, name)
            self._selector = selectors.DefaultSelector()
            for member in self._members:
                self._start(member)
        except BaseException:
            self.close()
            raise

    # Tasks

    def has_room(self, lane: int | None) -> bool:
        if lane is not None:
            return len(self._members[lane].tasks) < DEPTH
        return any(len(member.tasks) < DEPTH for member in self._members)

    def submit(self, task: Task) -> None:
        if task.lane is None:
            member = min(self._members, key=lambda member: len(member.tasks))
        else:
            member = self._members[task.lane]
        self._numbers += 1
        member.tasks.append((self._numbers, task))
        self._send(member, self._numbers, task)

    def wait(self) -> None:
        finished, begun = self._finished, time.monotonic()
        while self._finished == finished:
            self._receive(self._tick)
            waited = time.monotonic() - begun
            if self._finished == finished and waited >= self._tick:
                # At most two ticks: this process may itself have been stopped in between.
                self._look_after(min(waited, 2 * self._tick))
                begun = time.monotonic()

    def take(self, task: Task) -> Chunk:
        reply: _Reply = task.reply
        task.reply = None
        message, report = reply.message, reply.report
        rows: list[Any] = []
        root = self._slots.root(reply.slot, message.used)
        if message.layout:
            place = Place(message.place, message.layout, message.values)
            many = self._pins.bytes + message.used > HELD_BYTES and len(self._pins) >= HELD_SLOTS
            rows = self._reader.read(root, place, copy=many)
        if message.flags & KEPT:
            # The worker's user code holds arrays in it: it is never written again. The next results
            # of that worker are made elsewhere and copied, so this does not go on.
            pass
        else:
            self._pins.hold(reply.slot, root, message.used)
        del root
        error = None
        if report.error is not None:
            error = thaw_error(report.error, self._who(reply.member))
        return Chunk(
            rows,
            report.rows,
            report.dropped,
            error,
            report.skipped,
            None if report.before is None else json.loads(report.before),
            report.ended,
        )

    def cost(self, task: Task) -> tuple[int, int]:
        message: ReplyMessage = task.reply.message
        return message.used, message.busy

    # Workers

    def statistics(self) -> list[WorkerStatistics]:
        return [
            WorkerStatistics(
                number=member.number,
                pid=member.child.pid if member.child else None,
                busy_seconds=member.busy / 1e9,
                wait_seconds=member.idle / 1e9,
                memory_bytes=member.memory,
                datapoints=member.datapoints,
            )
            for member in self._members
        ]

    def pids(self) -> list[int]:
        """The worker processes, by worker number."""
        return [member.child.pid for member in self._members if member.child]

    def close(self) -> None:
        """Ends the workers at once and gives everything back; may be called twice."""
        if self._owner != os.getpid():
            return  # a fork of the owner: these are not its workers
        self._owner = -1
        for member in self._members:
            if member.channel is not None:
                member.channel.close()  # a worker that waits for a task leaves now
                member.channel = None
        deadline = time.monotonic() + GRACE_SECONDS
        for member in self._members:
            if member.child is not None:
                member.child.wait(max(0.0, deadline - time.monotonic()))
                member.child.kill()
        for member in self._members:
            if member.child is not None:
                member.child.wait(GRACE_SECONDS)
                member.child.close()
                member.child = None
        if self._selector is not None:
            self._selector.close()
        if self._packed is not None:
            os.close(self._packed)
            self._packed = None
        self._slots.close()

    def _start(self, member: _Member) -> None:
        ours, theirs = socket.socketpair()
        launcher.keep_from_forks(ours)
        try:
            member.child = launcher.launch(
                self._work,
                self._packed,
                ENTRY,
                [theirs.fileno(), self._slots.descriptor],
                self._method,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.sendall(member.number.to_bytes(HELLO_SIZE, "little"))
        member.channel = ours
        member.received.clear()
        member.waited = member.stopped = 0.0
        member.snapshot = None
        self._selector.register(ours, selectors.EVENT_READ, (member, member.child))
        if member.child.sentinel != NO_DESCRIPTOR:
            # The channel alone would not tell: a program that user code started may hold it open.
            self._selector.register(
                member.child.sentinel, selectors.EVENT_READ, (member, member.child)
            )

    # Sending

    def _send(self, member: _Member, number: int, task: Task) -> None:
        request, inputs, place = task.request, request_inputs(task), Place(0, 0, 0)
        flags = (CAREFULLY if task.deaths else 0) | (RESTORE if task.state is not None else 0)
        output, source = self._slot_for(member), None
        if inputs is not None:
            source = self._slot_for(member)
            place = pack_rows(inputs, SlotWriter(self._slots, source))
        self._slots_of[number] = output, source
        message = TaskMessage(
            number, flags, request.epoch, request.start, request.count, output, source or 0, *place
        )
        # If it has died, that is seen, and the task sent again, when its channel is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            member.channel.sendall(pack_task(message))

    def _slot_for(self, member: _Member) -> int:
        for slot in self._pins.released():
            self._user_of.get(slot, member).free_slots.append(slot)
        if member.free_slots:
            return member.free_slots.pop()
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        if slot >= MAX_SLOTS:
            raise RuntimeError(f"{self.name}: more than {MAX_SLOTS} slots of shared memory in use")
        self._user_of[slot] = member
        return slot

    def _give_back(self, member: _Member, number: int) -> None:
        """A task's slots, of which nobody has seen anything."""
        member.free_slots += [slot for slot in self._slots_of.pop(number) if slot is not None]

    # Receiving

    def _receive(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            member, child = key.data
            if member.child is not child:
                continue  # replaced since, by another event of the same moment
            if not self._read(member) or key.fd == child.sentinel:
                self._replace(member, None)

    def _read(self, member: _Member) -> bool:
        """Takes all replies that are there; False once the worker has closed its end."""
        while True:
            try:
                data = member.channel.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                return False
            member.received += data
        for message in unpack_replies(member.received):
            self._finish(member, message)
        del member.received[: len(member.received) // REPLY_SIZE * REPLY_SIZE]
        return True

    def _finish(self, member: _Member, message: ReplyMessage) -> None:
        number, task = member.tasks.popleft()
        if number != message.number:
            raise RuntimeError(f"{self._who(member)} answered task {message.number}, not {number}")
        output, source = self._slots_of.pop(number)
        if source is not None:
            member.free_slots.append(source)
        start = message.place + message.layout + message.values
        root = self._slots.root(output, start + message.report)
        report = decode_report(root[start : start + message.report].tobytes())
        if report.before is not None:
            member.position = f'{{"input": {report.before}, "skip": {report.rows}}}'
        member.waited = member.stopped = 0.0
        member.busy += message.busy
        member.idle += message.waited
        member.datapoints += report.rows
        if report.statistics is not None:
            if self._on_statistics is not None:
                self._on_statistics(report.statistics, member.snapshot)
            member.snapshot, member.memory = report.statistics, report.memory
        task.reply, task.done = _Reply(member, output, message, report), True
        task.request.inputs = None
        self._finished += 1

    # Watching

    def _look_after(self, seconds: float) -> None:
        """Kills workers that do nothing, after `seconds` more of waiting for them."""
        for member in self._members:
            if not member.tasks:
                continue
            member.waited += seconds
            member.stopped = member.stopped + seconds if is_stopped(member.child.pid) else 0.0
            limit = math.inf if not self._timeout else self._timeout
            if member.stopped >= min(STOPPED_SECONDS, limit):
                self._replace(member, f"it was stopped (SIGSTOP) for {member.stopped:.0f} s")
            elif member.waited >= limit:
                self._replace(member, f"it had not finished after {member.waited:.0f} s")

    def _replace(self, member: _Member, fault: str | None) -> None:
        """Puts a new worker in the place of one that died or, with a `fault`, is to die."""
        child = member.child
        if fault is not None or not child.wait(GRACE_SECONDS):
            child.kill()
            child.wait(EXIT_SECONDS)
        how = f"killed, because {fault}" if fault else describe_exit(child.status)
        told = f"{self._who(member)} died ({how}) while it worked on {self._suspect(member)}"
        self._drop(member)
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > DEATH_SECONDS:
            self._deaths.popleft()
        if len(self._deaths) >= MAX_DEATHS:
            self.close()
            raise WorkerDied(
                f"{told}. That was death {MAX_DEATHS} within {DEATH_SECONDS:.0f} s, so it is not "
                "replaced any more. Use num_proc=0 to run the same in this process and see why",
                member.number,
                child.status,
            )
        logger.warning("%s; another one takes its place and goes on there", told)
        for number, _ in member.tasks:
            self._give_back(member, number)
        if member.tasks:
            _, first = member.tasks[0]
            first.deaths += 1
            first.state = member.position or first.state
        self._start(member)
        for number, task in member.tasks:
            self._send(member, number, task)

    def _drop(self, member: _Member) -> None:
        self._selector.unregister(member.channel)
        if member.child.sentinel != NO_DESCRIPTOR:
            self._selector.unregister(member.child.sentinel)
        member.channel.close()
        member.child.close()
        member.channel = member.child = None

    def _who(self, member: _Member) -> str:
        pid = f" (pid {member.child.pid})" if member.child else ""
        return f"worker {member.number}{pid} of {self.name}"

    def _suspect(self, member: _Member) -> str:
        if not member.tasks:
            return "nothing"
        _, task = member.tasks[0]
        first, count = task.request.start, task.request.count
        if task.deaths:  # it announced each
            return f"datapoint {int(self._board[member.number])}"
        return f"datapoint {first}" if count == 1 else f"datapoints {first} to {first + count - 1}"


def request_inputs(task: Task) -> list[Any] | None:
    """What a worker is given with a task: datapoints to map, or a position to begin at."""
    return [task.state] if task.state is not None else task.request.inputs

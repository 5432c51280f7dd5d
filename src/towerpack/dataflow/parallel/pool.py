"""Worker processes that do tasks: kept alive, watched, and gone without a trace at the end.

No thread: everything happens when the consumer asks for the next datapoint. Each worker has a
channel of its own and is sent a few tasks ahead, so that it has work while the consumer is away.

A worker that dies is replaced and its tasks are sent again, the one it was at *carefully*: one
datapoint after another, each announced in shared memory. So the stream does not change, and should
a datapoint kill its worker again, its index is known.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from towerpack.core import logger, payload
from towerpack.core.processes import is_stopped
from towerpack.core.worker_process import NO_DESCRIPTOR, open_standard_descriptors
from towerpack.dataflow.parallel.member import EXIT_SECONDS, Member
from towerpack.dataflow.parallel.messages import (
    CAREFULLY,
    KEPT,
    RESTORE,
    STACK,
    STACKED,
    ReplyMessage,
    TaskMessage,
)
from towerpack.dataflow.parallel.packing import Place, RowReader, pack_longest
from towerpack.dataflow.parallel.report import Report, decode_report, thaw_error
from towerpack.dataflow.parallel.ring import MAX_SLOTS, Pins, SharedSlots, SlotWriter
from towerpack.dataflow.parallel.tasks import Ahead, Chunk, Task
from towerpack.dataflow.parallel.work import ByIndex, Work
from towerpack.dataflow.parallel.worker import BOARD, BOARD_BYTES
from towerpack.dataflow.statistics import WorkerStatistics

DEPTH = 2  # tasks sent to a worker: one under way, one at hand; more only cools the caches
MAX_DEATHS = 3  # in
DEATH_SECONDS = 60.0
STOPPED_SECONDS = 5.0  # a stopped worker (SIGSTOP) does not come back by itself
TICK_SECONDS = 1.0  # how often to look after workers while waiting for them
GRACE_SECONDS = 0.2  # for workers to leave by themselves, closing what they had open
HELD_BYTES = 1 << 28  # 256 MB of slots the consumer may hold; of more it gets copies
HELD_SLOTS = 64  # of any size: each takes a descriptor
HELD_AT_LEAST = 2  # of any size too: the last batch, and the one before

Merge = Callable[[list[list[int]], list[list[int]] | None], None]


class WorkerDied(RuntimeError):
    """Workers die again and again. Says how, which worker, and what it was working on."""

    def __init__(self, message: str, worker: int = -1, status: int | None = None):
        super().__init__(message)
        self.worker, self.status = worker, status


class _Reply(NamedTuple):
    member: Member
    slot: int
    message: ReplyMessage
    report: Report


class ProcessExecutor:
    """Runs a work object in `workers` processes."""

    def __init__(
        self,
        work: Work,
        workers: int,
        name: str,
        start_method: str,
        timeout: float | None,
        merge_statistics: Merge | None = None,
    ):
        open_standard_descriptors()
        self.workers, self.name = workers, name
        self.ahead: Ahead | None = None
        self._work, self._method, self._merge = work, start_method, merge_statistics
        self._patience = timeout or math.inf
        self._tick = min(TICK_SECONDS, self._patience / 4)
        self._owner = os.getpid()
        self._members: list[Member] = []
        self._deaths: dict[int, float] = {}  # when, by the process that died first
        self._tasks_sent = self._tasks_done = 0
        self._next_slot = BOARD + 1
        self._free_slots: list[int] = []  # the latest last: it is the likeliest to be in a cache
        self._slots_of: dict[int, tuple[int, int | None]] = {}  # output and input of a task
        self._pins = Pins()
        self._reader = RowReader()
        self._packed = None if start_method == "fork" else payload.pack(work, name)
        self._poll = select.poll()
        self._polled: dict[int, Member] = {}  # by descriptor: a channel, or a sentinel
        self._slots = SharedSlots.create()
        self._board = self._slots.root(BOARD, BOARD_BYTES).view(np.int64)
        try:
            for number in range(workers):
                self._members.append(self._start(number))
        except BaseException:
            self.close()
            raise

    # From pass to pass

    @property
    def is_reusable(self) -> bool:
        """Whether another pass may use these workers: they have no other's tasks, no position."""
        early = [task for task in self.ahead.tasks if not task.done] if self.ahead else []
        idle = sum(len(member.tasks) for member in self._members) == len(early)
        return idle and isinstance(self._work, ByIndex) and self._owner == os.getpid()

    def does_the_same(self, work: Work) -> bool:
        return (
            isinstance(self._work, ByIndex)
            and type(work) is type(self._work)
            and work.branch == self._work.branch
        )

    # Tasks

    def has_room(self, lane: int | None) -> bool:
        members = self._members if lane is None else [self._members[lane]]
        return any(len(member.tasks) < DEPTH for member in members)

    def submit(self, task: Task) -> None:
        if task.lane is None:
            member = min(self._members, key=lambda member: len(member.tasks))
        else:
            member = self._members[task.lane]
        self._tasks_sent += 1
        self._send(member, self._tasks_sent, task)
        if not task.done:
            member.tasks.append((self._tasks_sent, task))

    def wait(self) -> None:
        done, begun = self._tasks_done, time.monotonic()
        while self._tasks_done == done:
            self._receive(self._tick)
            waited = time.monotonic() - begun
            if self._tasks_done == done and waited >= self._tick:
                # At most two ticks: this process may itself have been stopped in between.
                self._look_after(min(waited, 2 * self._tick))
                begun = time.monotonic()

    def take(self, task: Task) -> Chunk:
        reply: _Reply = task.reply
        task.reply = None
        message, report = reply.message, reply.report
        root = self._slots.root(reply.slot, message.used)
        held, size = len(self._pins), self._pins.bytes + message.used
        many = held >= HELD_SLOTS or (size > HELD_BYTES and held >= HELD_AT_LEAST)
        place = Place(message.place, message.layout, message.values)
        rows = self._reader.read(root, place, copy=many)
        # Where user code in the worker holds arrays in the slot, nobody may ever write to it again.
        # From then on that worker makes its arrays elsewhere, so there are few such slots.
        if not message.flags & KEPT:
            self._pins.hold(reply.slot, root, message.used)
        error = task.tail
        if report.error is not None:
            error = thaw_error(report.error, f"in {self._who(reply.member)}")
        before = None if report.before is None else json.loads(report.before)
        return Chunk(
            rows,
            report.rows,
            report.dropped,
            error,
            report.skipped,
            before,
            report.ended,
            bool(message.flags & STACKED),
        )

    def cost(self, task: Task) -> tuple[int, int]:
        message: ReplyMessage = task.reply.message
        return message.used, message.busy

    # Workers

    def statistics(self) -> list[WorkerStatistics]:
        return [
            WorkerStatistics(
                number=member.number,
                pid=member.child.pid,
                busy_seconds=member.busy / 1e9,
                wait_seconds=member.idle / 1e9,
                memory_bytes=member.memory,
                datapoints=member.datapoints,
            )
            for member in self._members
        ]

    def close(self) -> None:
        """Ends the workers at once and gives everything back; may be called twice."""
        if self._owner != os.getpid():
            return  # a fork of the owner: these are not its workers
        self._owner = NO_DESCRIPTOR
        for member in self._members:
            member.channel.close()  # who waits for a task leaves now
        deadline = time.monotonic() + GRACE_SECONDS
        for member in self._members:
            member.child.wait(max(0.0, deadline - time.monotonic()))
            member.child.kill()
        for member in self._members:
            member.end(0.0)
        self._board = np.empty(0, np.int64)  # a view of a slot, which would keep it
        self._slots.close()
        if self._packed is not None:
            os.close(self._packed)
            self._packed = None

    def _start(self, number: int) -> Member:
        member = Member(number, self._work, self._packed, self._slots.descriptor, self._method)
        # The channel alone would not tell: a program that user code started may hold it open.
        for descriptor in (member.channel.fileno(), member.child.sentinel):
            if descriptor != NO_DESCRIPTOR:
                self._poll.register(descriptor, select.POLLIN)
                self._polled[descriptor] = member
        return member

    # Sending

    def _send(self, member: Member, number: int, task: Task) -> None:
        request, place = task.request, Place(0, 0, 0)
        inputs = request.inputs if task.state is None else [task.state]
        output, source = self._free_slot(), None
        if inputs is not None:
            source = self._free_slot()
            place, packed, error = pack_longest(inputs, SlotWriter(self._slots, source))
            if error is not None:
                # What comes before goes to the worker; the error follows in its place.
                request.count, request.inputs, task.tail = packed, inputs[:packed], error
                if not packed:
                    task.done, task.chunk = True, Chunk([], error=error)
                    self._free_slots += [output, source]
                    return
        self._slots_of[number] = output, source
        flags = (
            (CAREFULLY if task.deaths else 0)
            | (RESTORE if task.state is not None else 0)
            | (STACK if request.stack else 0)
        )
        asked = request.epoch, request.start, request.count
        member.send(TaskMessage(number, flags, *asked, output, source or 0, *place))

    def _free_slot(self) -> int:
        self._free_slots += self._pins.released()
        if self._free_slots:
            return self._free_slots.pop()
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        if slot >= MAX_SLOTS:
            raise RuntimeError(f"{self.name}: more than {MAX_SLOTS} slots of shared memory in use")
        return slot

    # Receiving

    def _receive(self, seconds: float) -> None:
        # Looked up before any is replaced: a successor may get the same descriptors.
        events = [(fd, self._polled[fd]) for fd, _ in self._poll.poll(seconds * 1000)]
        for descriptor, member in events:
            if self._members[member.number] is not member:
                continue  # replaced since, by another event of the same moment
            replies, is_open = member.receive()
            for message in replies:
                self._finish(member, message)
            if not is_open or descriptor == member.child.sentinel:
                self._replace(member, None)

    def _finish(self, member: Member, message: ReplyMessage) -> None:
        number, task = member.tasks.popleft()
        if number != message.number:
            raise RuntimeError(f"{self._who(member)} answered task {message.number}, not {number}")
        output, source = self._slots_of.pop(number)
        if source is not None:
            self._free_slots.append(source)
        if message.report:
            start = message.place + message.layout + message.values
            root = self._slots.root(output, start + message.report)
            report = decode_report(root[start : start + message.report].tobytes())
        else:
            report = Report(rows=task.request.count)
        if report.before is not None:
            member.position = f'{{"input": {report.before}, "skip": {report.rows}}}'
        member.waited = member.stopped = 0.0
        member.busy += message.busy
        member.idle += message.waited
        member.datapoints += report.rows
        if report.statistics is not None:
            if self._merge is not None:
                self._merge(report.statistics, member.snapshot)
            member.snapshot, member.memory = report.statistics, report.memory
        task.reply, task.done = _Reply(member, output, message, report), True
        task.request.inputs = None
        self._tasks_done += 1

    # Watching

    def _look_after(self, seconds: float) -> None:
        """Kills workers that do nothing, after `seconds` more of waiting for them."""
        for member in list(self._members):
            if not member.tasks:
                continue
            member.waited += seconds
            member.stopped = member.stopped + seconds if is_stopped(member.child.pid) else 0.0
            if member.stopped >= min(STOPPED_SECONDS, self._patience):
                self._replace(member, f"it was stopped (SIGSTOP) for {member.stopped:.0f} s")
            elif member.waited >= self._patience:
                self._replace(member, f"it had not finished after {member.waited:.0f} s")

    def _replace(self, member: Member, fault: str | None) -> None:
        """Puts a new worker in the place of one that died or, with a `fault`, is to die."""
        who, what = self._who(member), self._suspect(member)
        for descriptor in (member.channel.fileno(), member.child.sentinel):
            if descriptor != NO_DESCRIPTOR:
                self._poll.unregister(descriptor)
                del self._polled[descriptor]
        member.end(0.0 if fault else EXIT_SECONDS)
        how = f"died ({member.child.describe_end()})"
        if fault:
            how = f"was killed, since {fault},"
        told = f"{who} {how} while it worked on {what}"
        self._count_death(told, member)
        logger.warning("%s; another takes its place and goes on there", told)
        for number, _ in member.tasks:
            slots = self._slots_of.pop(number)
            self._free_slots += [slot for slot in slots if slot is not None]
        if member.tasks:
            _, first = member.tasks[0]
            first.deaths += 1
            first.state = member.position or first.state
        successor = self._start(member.number)
        successor.take_over(member)
        self._members[member.number] = successor
        for number, task in successor.tasks:
            self._send(successor, number, task)

    def _count_death(self, told: str, member: Member) -> None:
        now = time.monotonic()
        # A fork server takes all its workers along: that is one misfortune.
        self._deaths[member.child.server or member.child.pid] = now
        recent = sum(now - then <= DEATH_SECONDS for then in self._deaths.values())
        if recent >= MAX_DEATHS:
            raise WorkerDied(
                f"{told}. That was death {recent} in {DEATH_SECONDS:.0f} s: there will "
                "be no other. To see why, run the same in this process with num_proc=0",
                member.number,
                member.child.status,
            )

    def _who(self, member: Member) -> str:
        return f"worker {member.number} (pid {member.child.pid}) of {self.name}"

    def _suspect(self, member: Member) -> str:
        if not member.tasks:
            return "nothing"
        _, task = member.tasks[0]
        first, count = task.request.start, task.request.count
        if task.deaths:  # it announced each
            return f"datapoint {int(self._board[member.number])}"
        last = first + count - 1
        return f"datapoint {first}" if last == first else f"datapoints {first} to {last}"

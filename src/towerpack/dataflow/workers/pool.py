"""A pool of worker processes: gives them tasks, watches them, replaces and ends them.

It has no thread: everything happens when the consumer requests the next datapoint. Each worker has
a channel of its own and is sent a few tasks in advance, so it has work while the consumer is busy.

A worker that dies is replaced, and its tasks are sent again, so the stream stays the same. The task
during which it died is now done *carefully*: one datapoint after another, each announced in shared
memory. If a datapoint kills its worker again, its index is known.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pickle
import select
import socket
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from towerpack.core import logger
from towerpack.core.prefetch import TASKS_PER_WORKER
from towerpack.core.processes import NO_DESCRIPTOR
from towerpack.dataflow.iterators import State
from towerpack.dataflow.parallel.tasks import Task, Window
from towerpack.dataflow.parallel.work import ByIndex, Chunk, Work
from towerpack.dataflow.statistics import WorkerStatistics
from towerpack.dataflow.workers import payload
from towerpack.dataflow.workers.messages import (
    ReplyMessage,
    Report,
    TaskMessage,
    receive,
    send,
)
from towerpack.dataflow.workers.packing import Packed, pack_rows
from towerpack.dataflow.workers.process import EXIT_SECONDS, WorkerDied, WorkerProcess
from towerpack.dataflow.workers.shared_memory import MAX_SLOTS, Pins, SharedSlots, SlotWriter
from towerpack.dataflow.workers.worker import PROGRESS_BYTES, PROGRESS_SLOT

ENTRY = "towerpack.dataflow.workers.worker:serve"
MAX_DEATHS = 3  # within
DEATH_SECONDS = 60.0
STOPPED_SECONDS = 5.0  # a stopped worker (SIGSTOP) does not resume by itself
TICK_SECONDS = 1.0  # how often stuck workers are looked for while the consumer waits
GRACE_SECONDS = 0.2  # for workers to exit by themselves and close what they have open
HELD_BYTES = 1 << 28  # 256 MB of slots that the consumer may hold; beyond, it gets copies
HELD_SLOTS = 64  # of any size, because each takes a descriptor
HELD_AT_LEAST = 2  # of any size: the last batch and the one before

Merge = Callable[[list[list[int]], list[list[int]] | None], None]


class _Worker:
    """One place in the pool: its process, its tasks, and what it has done so far."""

    def __init__(self, process: WorkerProcess):
        self.process = process
        self.tasks: deque[tuple[int, Task]] = deque()  # with their numbers, oldest first
        self.position: State | None = None  # of a stream: where it is after its last reply
        self.waited = 0.0  # seconds that the consumer has waited for its oldest task
        self.stopped = 0.0  # seconds of these during which it was stopped
        self.snapshot: list[list[int]] | None = None
        self.busy = self.idle = 0  # nanoseconds
        self.datapoints = self.memory = 0

    def replace(self, process: WorkerProcess) -> None:
        """A new process continues with the same tasks."""
        self.process = process
        self.waited, self.stopped, self.snapshot, self.memory = 0.0, 0.0, None, 0


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
        self.workers, self.name = workers, name
        self.ahead: Window | None = None
        self._work, self._method, self._merge = work, start_method, merge_statistics
        self._patience = timeout or math.inf
        self._tick = min(TICK_SECONDS, self._patience / 4)
        self._owner = os.getpid()
        self._workers: list[_Worker] = []
        self._deaths: dict[int, float] = {}  # when, by the pid of the process that died first
        self._tasks_sent = self._tasks_done = 0
        self._next_slot = PROGRESS_SLOT + 1
        self._free_slots: list[int] = []  # the latest last: it is the most likely to be cached
        # Of each task: the slot of its output, and slot, place and size of its input.
        self._slots_of: dict[int, tuple[int, tuple[int, int, int] | None]] = {}
        self._pins = Pins()
        self._packed = NO_DESCRIPTOR if start_method == "fork" else payload.pack(work, name)
        self._slots = SharedSlots.create()
        self._progress = self._slots.root(PROGRESS_SLOT, PROGRESS_BYTES).view(np.int64)
        try:
            for number in range(workers):
                self._workers.append(_Worker(self._start(number)))
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> WorkerProcess:
        memory = [self._slots.descriptor]
        return WorkerProcess(
            number, self.name, ENTRY, self._work, self._packed, self._method, memory
        )

    def does_the_same(self, work: Work) -> bool:
        """Whether these workers can do this work in a further epoch."""
        return (
            isinstance(self._work, ByIndex)
            and type(work) is type(self._work)
            and work.branch == self._work.branch
        )

    @property
    def is_reusable(self) -> bool:
        """Whether the workers can serve another epoch: no tasks of others, no position."""
        early = [task for task in self.ahead.in_progress() if not task.done] if self.ahead else []
        idle = sum(len(worker.tasks) for worker in self._workers) == len(early)
        return idle and isinstance(self._work, ByIndex) and self._owner == os.getpid()

    def close(self) -> None:
        """Ends the workers at once and frees all resources; may be called twice."""
        if self._owner != os.getpid():
            return  # in a fork of the owner: these are not its workers
        self._owner = NO_DESCRIPTOR
        processes = [worker.process for worker in self._workers]
        for process in processes:
            process.channel.close()  # a worker that waits for a task exits now
        deadline = time.monotonic() + GRACE_SECONDS
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
        for process in processes:
            process.end(0.0)
        self._progress = np.empty(0, np.int64)  # as a view of a slot it would keep its memory
        self._slots.close()
        if self._packed != NO_DESCRIPTOR:
            os.close(self._packed)
            self._packed = NO_DESCRIPTOR

    def statistics(self) -> list[WorkerStatistics]:
        return [
            WorkerStatistics(
                number=worker.process.number,
                pid=worker.process.pid,
                busy_seconds=worker.busy / 1e9,
                wait_seconds=worker.idle / 1e9,
                memory_bytes=worker.memory,
                datapoints=worker.datapoints,
            )
            for worker in self._workers
        ]

    def has_room(self, lane: int | None) -> bool:
        workers = self._workers if lane is None else [self._workers[lane]]
        return any(len(worker.tasks) < TASKS_PER_WORKER for worker in workers)

    def submit(self, task: Task) -> None:
        if task.lane is None:
            worker = min(self._workers, key=lambda worker: len(worker.tasks))
        else:
            worker = self._workers[task.lane]
        self._tasks_sent += 1
        self._send(worker, self._tasks_sent, task)
        if not task.done:
            worker.tasks.append((self._tasks_sent, task))

    def _send(self, worker: _Worker, number: int, task: Task) -> None:
        request = task.request
        inputs = request.inputs if task.state is None else [task.state]
        output, source = self._free_slot(), None
        if inputs is not None:
            slot = self._free_slot()
            writer = SlotWriter(self._slots, slot)
            packed, count, error = pack_rows(inputs, writer)
            if error is not None:
                # The datapoints before it are sent to the worker, and the error follows them.
                request.count, request.inputs, task.tail = count, inputs[:count], error
                if not count:
                    task.done, task.chunk = True, Chunk([], error=error)
                    self._free_slots += [output, slot]
                    return
            data = pickle.dumps(packed, 5)
            source = slot, writer.put(data), len(data)
        self._slots_of[number] = output, source
        message = TaskMessage(
            number,
            *(request.epoch, request.start, request.count),
            *(output, source),
            stack=request.stack,
            restore=task.state is not None,
            carefully=task.deaths > 0,
        )
        # If it has died, that is noticed later, and its tasks are sent to another.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(worker.process.channel, message)

    def _free_slot(self) -> int:
        self._free_slots += self._pins.released()
        if self._free_slots:
            return self._free_slots.pop()
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        if slot >= MAX_SLOTS:
            raise RuntimeError(f"{self.name}: more than {MAX_SLOTS} slots of shared memory in use")
        return slot

    def wait(self) -> None:
        done, begun = self._tasks_done, time.monotonic()
        while self._tasks_done == done:
            self._receive(self._tick)
            waited = time.monotonic() - begun
            if self._tasks_done == done and waited >= self._tick:
                # At most two ticks: this process may have been stopped in between.
                self._replace_stuck(min(waited, 2 * self._tick))
                begun = time.monotonic()

    def _receive(self, seconds: float) -> None:
        poll, watched = select.poll(), {}
        for worker in self._workers:
            process = worker.process
            # The channel alone is not enough: a program that user code started may hold it open.
            for descriptor in (process.channel.fileno(), process.sentinel):
                if descriptor != NO_DESCRIPTOR:
                    poll.register(descriptor, select.POLLIN)
                    watched[descriptor] = worker, process
        for descriptor, _ in poll.poll(seconds * 1000):
            worker, process = watched[descriptor]
            if worker.process is not process:
                continue  # it was replaced after an earlier one of these events
            is_open = True
            with contextlib.suppress(BlockingIOError):
                while is_open:
                    message = receive(process.channel, ReplyMessage, socket.MSG_DONTWAIT)
                    is_open = message is not None
                    if message is not None:
                        self._finish(worker, message)
            if not is_open or descriptor == process.sentinel:
                self._replace(worker, None)

    def _finish(self, worker: _Worker, message: ReplyMessage) -> None:
        number, task = worker.tasks.popleft()
        if number != message.number:
            raise RuntimeError(f"{worker.process} answered task {message.number}, not {number}")
        output, source = self._slots_of.pop(number)
        if source is not None:
            self._free_slots.append(source[0])
        report = Report.decoded(self._slots.load(output, message.place, message.size))
        chunk = report.chunk
        if chunk.before is not None:
            worker.position = {"input": chunk.before, "skip": chunk.made}
        worker.waited = worker.stopped = 0.0
        worker.busy += message.busy
        worker.idle += message.waited
        worker.datapoints += chunk.made
        if report.statistics is not None:
            if self._merge is not None:
                self._merge(report.statistics, worker.snapshot)
            worker.snapshot, worker.memory = report.statistics, report.memory
        chunk.busy, chunk.size = message.busy, message.used
        chunk.error = report.error.thaw(f"in {worker.process}") if report.error else task.tail
        task.load = functools.partial(self._load, task, chunk, report.packed, output, message.kept)
        task.chunk, task.done, task.request.inputs = chunk, True, None
        self._tasks_done += 1

    def _load(self, task: Task, chunk: Chunk, packed: Packed, slot: int, kept: bool) -> None:
        task.load = None
        root = self._slots.root(slot, chunk.size)
        held, size = self._pins.count, self._pins.bytes + chunk.size
        copy = held >= HELD_SLOTS or (size > HELD_BYTES and held >= HELD_AT_LEAST)
        chunk.rows = packed.rows(root, copy)
        chunk.kept = len(chunk.rows)
        # If user code in the worker holds arrays in the slot, it must never be written again. From
        # then on that worker makes its arrays elsewhere, so there are few such slots.
        if not kept:
            self._pins.hold(slot, root, chunk.size)

    def _replace_stuck(self, seconds: float) -> None:
        """Replaces workers that make no progress, after `seconds` more of waiting for them."""
        for worker in self._workers:
            if not worker.tasks:
                continue
            worker.waited += seconds
            worker.stopped = worker.stopped + seconds if worker.process.is_stopped() else 0.0
            if worker.stopped >= min(STOPPED_SECONDS, self._patience):
                self._replace(worker, f"it was stopped (SIGSTOP) for {worker.stopped:.0f} s")
            elif worker.waited >= self._patience:
                self._replace(worker, f"it had not finished after {worker.waited:.0f} s")

    def _replace(self, worker: _Worker, fault: str | None) -> None:
        """Replaces the process of a worker that has died or, with a `fault`, is killed for it."""
        dead, suspect = worker.process, self._suspect(worker)
        dead.end(0.0 if fault else EXIT_SECONDS)
        death = dead.death(f"it worked on {suspect}", fault)
        self._count_death(death, dead)
        logger.warning("%s; a new worker continues there", death)
        for number, _ in worker.tasks:
            output, source = self._slots_of.pop(number)
            self._free_slots += [output] if source is None else [output, source[0]]
        if worker.tasks:
            _, first = worker.tasks[0]
            first.deaths += 1
            if worker.position is not None:
                first.state = json.dumps(worker.position)
        worker.replace(self._start(dead.number))
        for number, task in worker.tasks:
            self._send(worker, number, task)

    def _count_death(self, death: WorkerDied, dead: WorkerProcess) -> None:
        """Raises the third one within a minute."""
        now = time.monotonic()
        # The workers that a killed fork server takes along count as one death.
        self._deaths[dead.server_pid or dead.pid] = now
        recent = sum(now - then <= DEATH_SECONDS for then in self._deaths.values())
        if recent >= MAX_DEATHS:
            raise WorkerDied(
                f"{death}. No new worker is started after {recent} deaths within "
                f"{DEATH_SECONDS:.0f} s. To find the cause, run the same in this process with "
                "num_proc=0",
                death.worker,
                death.status,
            )

    def _suspect(self, worker: _Worker) -> str:
        """What the worker was working on, in words."""
        if not worker.tasks:
            return "nothing"
        _, task = worker.tasks[0]
        first, count = task.request.start, task.request.count
        if task.deaths:  # each datapoint was announced
            return f"datapoint {int(self._progress[worker.process.number])}"
        last = first + count - 1
        return f"datapoint {first}" if last == first else f"datapoints {first} to {last}"

"""A worker process: takes tasks from its channel and makes datapoints in shared memory."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.processes import private_memory
from towerpack.core.worker_process import calm_opencv
from towerpack.dataflow.parallel.messages import (
    CAREFULLY,
    FAILED_TO_START,
    HELLO_SIZE,
    KEPT,
    RESTORE,
    STACK,
    STACKED,
    TASK_SIZE,
    ReplyMessage,
    TaskMessage,
    pack_reply,
    unpack_task,
)
from towerpack.dataflow.parallel.packing import Place, RowReader, pack_longest
from towerpack.dataflow.parallel.report import Report, encode_report, freeze_error
from towerpack.dataflow.parallel.ring import MIN_MAPPING, SharedSlots, SlotWriter
from towerpack.dataflow.parallel.work import Request, Result, StreamWork, Work
from towerpack.dataflow.statistics import Counter, snapshot, walk

ENTRY = "towerpack.dataflow.parallel.worker:serve"
BOARD = 0  # the slot where each worker says which datapoint it is at
BOARD_BYTES = 1 << 16
SNAPSHOT_SECONDS = 0.5  # often enough for a table that a person reads

# Options of glibc's `mallopt`, and their values. By default it gives an array of 128 kB or more to
# the kernel as soon as it is freed, and the next one costs a page fault for every 4 kB: most of the
# time of a cheap function.
M_TRIM_THRESHOLD, TRIM_BYTES = -1, 1 << 26  # 64 MB: what a worker keeps, at most, at its heap's end
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 1 << 25  # 32 MB: the largest value that glibc takes

_clock = time.perf_counter_ns


def keep_freed_memory() -> None:
    """Makes the allocator use freed memory again instead of giving it back; glibc only."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)


def serve(load: Callable[[], Work], descriptors: Sequence[int]) -> None:
    """The whole life of a worker; returns when the parent closes the channel."""
    channel, memory = descriptors
    keep_freed_memory()
    with socket.socket(fileno=channel) as connection:
        number = int.from_bytes(connection.recv(HELLO_SIZE, socket.MSG_WAITALL), "little")
        worker = _Worker(connection, SharedSlots(memory), number)
        worker.load(load)
        while worker.step():
            pass
        worker.close()


class _Worker:
    def __init__(self, connection: socket.socket, slots: SharedSlots, number: int):
        self.connection, self.slots, self.number = connection, slots, number
        board = slots.root(BOARD, BOARD_BYTES).view(np.int64)
        self.board = board[number : number + 1]
        self.reader = RowReader()
        self.work: Work | None = None
        self.failure: Exception | None = None
        self.expected = MIN_MAPPING
        self.in_place = True
        self.told = 0  # when statistics were last sent
        self.waiting_since = _clock()

    def load(self, load: Callable[[], Work]) -> None:
        try:
            work = load()
            calm_opencv()
            for stage in walk(work.statistics_of()):
                stage.statistics = Counter()  # a fork has inherited what its parent counted
            if isinstance(work, StreamWork):
                work.be_copy(self.number)
            self.work = work
        except Exception as error:  # noqa: BLE001 (told in the reply to the first task)
            self.failure = error
        if "tensorflow" in sys.modules and self.number == 0:
            logger.warning(
                "a flow or its function made the workers import TensorFlow, which takes each of "
                "them seconds and half a gigabyte; keep it out of functions that workers run, and "
                "of the modules that these are defined in"
            )

    def step(self) -> bool:
        """One task; False when there will be no more."""
        try:
            data = self.connection.recv(TASK_SIZE, socket.MSG_WAITALL)
        except ConnectionResetError:
            return False
        if len(data) < TASK_SIZE:
            return False
        task = unpack_task(data)
        begun = _clock()
        flags, place, report, used = self.answer(task)
        now = _clock()
        reply = ReplyMessage(
            task.number,
            flags,
            place.start,
            place.layout,
            place.values,
            report,
            used,
            now - begun,
            begun - self.waiting_since,
        )
        self.waiting_since = now
        try:
            self.connection.sendall(pack_reply(reply))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def answer(self, task: TaskMessage) -> tuple[int, Place, int, int]:
        writer = SlotWriter(self.slots, task.output, self.expected)
        if self.work is None:
            failure = self.failure or RuntimeError("the work was not loaded")
            report = Report(error=freeze_error(failure))
            return FAILED_TO_START, *self.finish(writer, [], report, task)
        try:
            result = self.perform(self.work, task, writer)
        except Exception as error:  # noqa: BLE001 (the consumer gets it)
            return 0, *self.finish(writer, [], Report(error=freeze_error(error)), task)
        report, flags = Report.of(result), 0
        if result.stacked:
            report.rows, flags = task.length, STACKED
        if _clock() - self.told > SNAPSHOT_SECONDS * 1e9:
            self.told = _clock()
            report.statistics = snapshot(self.work.statistics_of())
            report.memory = private_memory(os.getpid())
        rows = [row for row in result.rows if row is not None]
        del result
        finished = self.finish(writer, rows, report, task)
        del rows
        return flags | self.still_held(writer), *finished

    def perform(self, work: Work, task: TaskMessage, writer: SlotWriter) -> Result:
        inputs = None
        if task.layout:
            root = self.slots.root(task.input, task.place + task.layout + task.values)
            # Copies, for user code may keep what it gets and the slot is soon used again.
            inputs = self.reader.read(root, Place(task.place, task.layout, task.values), copy=True)
        if task.flags & RESTORE and inputs and isinstance(work, StreamWork):
            work.restore(task.epoch, inputs[0])
        stack = bool(task.flags & STACK)
        request = Request(task.epoch, task.start, task.length, inputs, stack)
        allocate = writer.allocate if self.in_place else np.empty
        if task.flags & CAREFULLY:
            return work.run_carefully(request, allocate, self.begin)
        return work.run(request, allocate)

    def begin(self, index: int) -> None:
        self.board[0] = index

    def finish(
        self, writer: SlotWriter, rows: list[Any], report: Report, task: TaskMessage
    ) -> tuple[Place, int, int]:
        place, packed, error = pack_longest(rows, writer)
        if error is not None:
            report.cut(packed)
            error.add_note(f"datapoint {task.start + report.rows}")
            report.error = freeze_error(error)
        encoded = b"" if report.is_usual(task.length) else encode_report(report)
        # Right behind the rows' description, so that the reply need not say where.
        writer.put_behind(encoded)
        self.expected = max(self.expected, writer.position)
        return place, len(encoded), writer.position

    def still_held(self, writer: SlotWriter) -> int:
        """Whether user code kept an array that lies in the slot: then nobody may write there."""
        watching = writer.watch()
        if all(root() is None for root in watching):
            return 0
        gc.collect()  # perhaps it is only a cycle that nobody holds
        if all(root() is None for root in watching):
            return 0
        # Such a flow keeps what it makes (a cache, say): from now on it gets memory of its own.
        self.in_place = False
        return KEPT

    def close(self) -> None:
        if isinstance(self.work, StreamWork):
            self.work.close()

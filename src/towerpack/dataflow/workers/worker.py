"""A worker process: receives tasks on its channel and makes datapoints in shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import socket
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from towerpack.core import logger
from towerpack.dataflow.parallel.work import Chunk, Request, StreamWork, Work
from towerpack.dataflow.statistics import Counter, snapshot, walk
from towerpack.dataflow.workers.messages import (
    FrozenError,
    ReplyMessage,
    Report,
    TaskMessage,
    receive,
    send,
)
from towerpack.dataflow.workers.packing import pack_rows
from towerpack.dataflow.workers.shared_memory import SharedSlots, SlotWriter
from towerpack.dataflow.workers.startup import limit_opencv

PROGRESS_SLOT = 0  # in it, each worker announces the datapoint that it is making
PROGRESS_BYTES = 1 << 16
SNAPSHOT_SECONDS = 0.5  # often enough for a table that a person reads

# Options of glibc's `mallopt`, and their values. By default it returns an array of 128 kB or more
# to the kernel as soon as it is freed. The next one then costs a page fault for every 4 kB, which
# is most of the time of a cheap function.
M_TRIM_THRESHOLD, TRIM_BYTES = -1, 1 << 26  # 64 MB: free memory that a worker keeps at most
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 1 << 25  # 32 MB: the largest value that glibc accepts

_clock = time.perf_counter_ns


def reuse_freed_memory() -> None:
    """Makes the allocator reuse freed memory instead of returning it to the kernel; glibc only."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)


def private_memory() -> int:
    """Bytes of memory that belong to this process alone; 0 if the system does not tell."""
    total = 0
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Private_"):
                    total += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total


def serve(
    load: Callable[[], Work], channel: socket.socket, number: int, descriptors: Sequence[int]
) -> None:
    """The whole life of a worker; returns when the parent closes the channel."""
    reuse_freed_memory()
    worker = _Worker(channel, SharedSlots(descriptors[0]), number)
    worker.load(load)
    while worker.step():
        pass
    if isinstance(worker.work, StreamWork):
        worker.work.close()


class _Worker:
    def __init__(self, channel: socket.socket, slots: SharedSlots, number: int):
        self.channel, self.slots, self.number = channel, slots, number
        progress = slots.root(PROGRESS_SLOT, PROGRESS_BYTES).view(np.int64)
        self.progress = progress[number : number + 1]
        self.work: Work | None = None
        self.failure: Exception = RuntimeError("the work was not loaded")
        self.in_place = True
        self.reported_at = 0  # when statistics were last sent
        self.waiting_since = _clock()

    def load(self, load: Callable[[], Work]) -> None:
        try:
            work = load()
            limit_opencv()
            for stage in walk(work.statistics_of()):
                stage.statistics = Counter()  # a fork has inherited what its parent counted
            if isinstance(work, StreamWork):
                work.be_copy(self.number)
            self.work = work
        except Exception as error:  # noqa: BLE001 (reported in the reply to the first task)
            self.failure = error
        if "tensorflow" in sys.modules and self.number == 0:
            logger.warning(
                "a flow or its function made the workers import TensorFlow, which takes each of "
                "them seconds and half a gigabyte; keep it out of functions that workers run, and "
                "of the modules that these are defined in"
            )

    def step(self) -> bool:
        """Does one task; False if there will be no more."""
        task = receive(self.channel, TaskMessage)
        if task is None:
            return False
        begun = _clock()
        writer = SlotWriter(self.slots, task.output)
        place, size = self.answer(task, writer)
        kept, now = self.is_kept(writer), _clock()
        busy, waited = now - begun, begun - self.waiting_since
        self.waiting_since = now
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(
                self.channel,
                ReplyMessage(task.number, place, size, writer.position, busy, waited, kept),
            )
        return True

    def answer(self, task: TaskMessage, writer: SlotWriter) -> tuple[int, int]:
        """Makes the datapoints; returns the place of the report about them, and its size."""
        try:
            if self.work is None:
                raise self.failure
            chunk = self.perform(self.work, task, writer)
        except Exception as failure:  # noqa: BLE001 (the consumer gets it)
            chunk = Chunk([], error=failure)
        packed, count, refused = pack_rows(chunk.rows, writer)
        error = chunk.error
        if refused is not None:
            chunk.made, chunk.ended = chunk.offset_after(count), False
            chunk.dropped = [i for i in chunk.dropped if i < chunk.made]
            refused.add_note(f"datapoint {task.start + chunk.made}")
            error = refused
        chunk.rows, chunk.error, chunk.kept = [], None, 0
        report = Report(chunk, packed, FrozenError.of(error) if error is not None else None)
        if self.work is not None and _clock() - self.reported_at > SNAPSHOT_SECONDS * 1e9:
            self.reported_at = _clock()
            report.statistics = snapshot(self.work.statistics_of())
            report.memory = private_memory()
        encoded = report.encoded()
        return writer.put(encoded), len(encoded)

    def perform(self, work: Work, task: TaskMessage, writer: SlotWriter) -> Chunk:
        inputs = None
        if task.input is not None:
            # Copies: user code may keep what it gets, and the slot is soon reused.
            inputs = self.slots.load(*task.input).rows(self.slots.root(task.input[0]), copy=True)
        if task.restore and inputs and isinstance(work, StreamWork):
            work.restore(task.epoch, inputs[0])
        request = Request(task.epoch, task.start, task.length, inputs, task.stack)
        allocate = writer.allocate if self.in_place else np.empty
        if task.carefully:
            return work.run_carefully(request, allocate, self.announce)
        return work.run(request, allocate)

    def announce(self, index: int) -> None:
        self.progress[0] = index

    def is_kept(self, writer: SlotWriter) -> bool:
        """Whether user code holds an array that lies in the slot, so it must stay unchanged."""
        references = writer.release()
        if all(reference() is None for reference in references):
            return False
        gc.collect()  # it may be held only by a cycle
        if all(reference() is None for reference in references):
            return False
        # Such a flow keeps what it makes, as a cache does: from now on it gets ordinary memory.
        self.in_place = False
        return True

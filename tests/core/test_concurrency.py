"""Threads that can be asked to stop, and processes that ignore Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time

from towerpack.core.concurrency import StoppableThread, mask_sigint, start_proc_mask_signal


class Waiting(StoppableThread):
    def __init__(self, action):
        super().__init__()
        self.action, self.result = action, "nothing yet"

    def run(self):
        self.result = self.action(self)


def test_stop_ends_a_wait_for_a_queue():
    full = queue.Queue(1)
    full.put(0)
    for action in (
        lambda thread: thread.queue_get_stoppable(queue.Queue()),
        lambda thread: thread.queue_put_stoppable(full, 1),
    ):
        thread = Waiting(action)
        thread.start()
        thread.stop()
        thread.join()
        assert thread.stopped() and thread.result is None


def test_queues_work_while_it_runs():
    values = queue.Queue()
    thread = Waiting(lambda thread: thread.queue_get_stoppable(values))
    thread.start()
    values.put(7)
    thread.join()
    assert thread.result == 7


def test_an_event_may_be_shared():
    event = threading.Event()
    threads = [StoppableThread(evt=event) for _ in range(2)]
    threads[0].stop()
    assert threads[1].stopped()


def test_interrupts_are_masked_for_a_while():
    before = signal.getsignal(signal.SIGINT)
    with mask_sigint() as masked:
        assert masked
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_cannot_mask_them():
    found = []

    def attempt():
        with mask_sigint() as masked:
            found.append(masked)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_process_started_while_masked_lives_through_interrupts():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=time.sleep, args=(100,))
    start_proc_mask_signal([process])
    try:
        os.kill(process.pid, signal.SIGINT)
        assert process.is_alive()
    finally:
        process.kill()
        process.join()

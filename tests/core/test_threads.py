"""Threads that can be asked to stop, and results put back in order."""

from __future__ import annotations

import queue
import threading

import pytest

from towerpack.core.threads import (
    DIE,
    LoopThread,
    OrderedContainer,
    OrderedResultGatherProc,
    StoppableThread,
)


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


def test_a_loop_pauses_resumes_and_stops():
    called = threading.Semaphore(0)
    thread = LoopThread(called.release)
    thread.start()
    assert called.acquire(timeout=10)
    thread.pause()
    thread.resume()
    assert called.acquire(timeout=10)
    thread.pause()
    thread.stop()
    thread.join(10)
    assert not thread.is_alive() and thread.daemon


def test_a_loop_that_may_not_pause_says_so():
    thread = LoopThread(lambda: None, pausable=False)
    with pytest.raises(RuntimeError, match="pausable=False"):
        thread.pause()


def test_order_is_restored():
    container = OrderedContainer(start=5)
    for rank in (7, 5, 6):
        container.put(rank, str(rank))
    assert [container.get() for _ in range(3)] == [(5, "5"), (6, "6"), (7, "7")]
    with pytest.raises(LookupError, match="number 8"):
        container.get()
    with pytest.raises(ValueError, match="received 6 again"):
        container.put(6, "again")


def test_results_of_several_producers_are_gathered_in_order():
    results = queue.Queue()
    gather = OrderedResultGatherProc(results, nr_producer=2)
    gather.start()
    for item in [(2, "c"), (0, "a"), DIE, (1, "b"), DIE()]:
        results.put(item)
    assert [gather.get() for _ in range(3)] == [(0, "a"), (1, "b"), (2, "c")]
    assert gather.get() is DIE
    gather.join(10)
    assert not gather.is_alive()

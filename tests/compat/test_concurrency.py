"""The concurrency helpers of old scripts."""

from __future__ import annotations

import queue
import threading

import pytest

from tests.dataflow.parallel.scripts import alive, eventually, run
from towerpack.compat.concurrency import (
    DIE,
    LoopThread,
    OrderedContainer,
    OrderedResultGatherProc,
    subproc_call,
)


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


def test_processes_end_with_their_parent(tmp_path):
    code = """
        import subprocess, sys
        from towerpack.compat.concurrency import ensure_proc_terminate
        child = subprocess.Popen(["sleep", "1000"])
        gone = subprocess.Popen(["true"])
        gone.wait()
        ensure_proc_terminate([child, gone])
        print(child.pid)
    """
    pid = int(run(code, cwd=tmp_path))
    eventually(lambda: not alive(pid))


def test_the_kernel_ends_a_process_with_its_parent(tmp_path):
    code = """
        import os, signal, time
        from towerpack.compat.concurrency import enable_death_signal
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            enable_death_signal(signal.SIGKILL)
            os.write(tell, b"x")
            time.sleep(1000)
        os.read(ready, 1)
        print(pid, flush=True)
        os._exit(0)
    """
    pid = int(run(code, cwd=tmp_path))
    eventually(lambda: not alive(pid))


def test_a_command_gives_its_output_and_status():
    assert subproc_call("echo out; echo err >&2; exit 3") == (b"out\nerr\n", 3)
    assert subproc_call(["echo", "a b"]) == (b"a b\n", 0)


def test_a_command_that_takes_too_long_is_killed_with_all_it_started():
    output, status = subproc_call("sleep 1000 & echo $!; sleep 1000", timeout=0.5)
    assert status == -1
    eventually(lambda: not alive(int(output)))

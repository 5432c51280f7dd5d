"""Processes: starting and ending them, how one ended, how it is doing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.dataflow.parallel.scripts import alive, eventually, run
from towerpack.core import processes


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "SIGKILL: probably out of memory, or killed by someone"),
        (-11, "SIGSEGV: native code crashed"),
        (-15, "SIGTERM"),
        (-99, "signal 99"),
        (None, "gone, exit status unknown"),
    ],
)
def test_an_exit_in_words(status, words):
    assert processes.describe_exit(status) == words


def test_whether_a_process_is_stopped():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as child:
        assert not processes.is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        eventually(lambda: processes.is_stopped(child.pid))
        child.kill()
    assert not processes.is_stopped(child.pid)


def test_memory_of_a_process_alone():
    code = "import time; kept = bytearray(50_000_000); print(flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert 50_000_000 < processes.private_memory(child.pid) < 100_000_000
        child.kill()
    assert processes.private_memory(child.pid) == 0


def test_interrupts_are_masked_for_a_while():
    before = signal.getsignal(signal.SIGINT)
    with processes.mask_sigint() as masked:
        assert masked
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_cannot_mask_them():
    found = []

    def attempt():
        with processes.mask_sigint() as masked:
            found.append(masked)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_process_started_while_masked_lives_through_interrupts():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=time.sleep, args=(100,))
    processes.start_proc_mask_signal([process])
    try:
        os.kill(process.pid, signal.SIGINT)
        assert process.is_alive()
    finally:
        process.kill()
        process.join()


def test_processes_end_with_their_parent(tmp_path):
    code = """
        import subprocess, sys
        from towerpack.core.processes import ensure_proc_terminate
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
        from towerpack.core.processes import enable_death_signal
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
    assert processes.subproc_call("echo out; echo err >&2; exit 3") == (b"out\nerr\n", 3)
    assert processes.subproc_call(["echo", "a b"]) == (b"a b\n", 0)


def test_a_command_that_takes_too_long_is_killed_with_all_it_started():
    output, status = processes.subproc_call("sleep 1000 & echo $!; sleep 1000", timeout=0.5)
    assert status == -1
    eventually(lambda: not alive(int(output)))

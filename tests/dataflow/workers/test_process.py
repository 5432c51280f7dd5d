"""Single worker processes, by every start method."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from tests.dataflow.parallel.scripts import alive, children, eventually, run
from tests.leftovers import descriptors
from towerpack.core.processes import NO_DESCRIPTOR
from towerpack.dataflow.workers import forkserver, payload, process

HERE = "tests.dataflow.workers.test_process"


def writes_its_pid(load, channel, number, descriptors):
    (out,) = descriptors
    channel.sendall(b"hello")
    os.write(out, f"{os.getpid()} {number} {load()}".encode())


def ends_as_told(load, channel, number, descriptors):
    what = load()
    if what < 0:
        os.kill(os.getpid(), -what)
    os._exit(what)


def raises(load, channel, number, descriptors):
    raise ValueError("in a worker")


def waits(load, channel, number, descriptors):
    signal.pause()


@pytest.fixture(params=process.START_METHODS)
def method(request):
    if request.param == "fork" and threading.active_count() > 1:
        pytest.skip("other threads run here")
    return request.param


@pytest.fixture
def launch():
    """Launches `entry`, and sees to it that nothing of it is left."""
    children, packs = [], []

    def launch(obj, entry, fds, method):
        packed = NO_DESCRIPTOR if method == "fork" else payload.pack(obj, "it")
        packs.append(packed)
        children.append(process.WorkerProcess(3, "it", f"{HERE}:{entry}", obj, packed, method, fds))
        return children[-1]

    yield launch
    for child in children:
        child.kill()
        assert child.wait(10)
        child.end(0.0)
    for packed in packs:
        if packed != NO_DESCRIPTOR:
            os.close(packed)


def test_a_worker_gets_the_object_and_the_descriptors(method, launch):
    ours, theirs = os.pipe()
    child = launch(lambda: 1, "writes_its_pid", [theirs], method)
    os.close(theirs)
    said = os.read(ours, 1000).decode()
    os.close(ours)
    assert said.startswith(f"{child.pid} 3 <function") and child.pid != os.getpid()
    assert child.channel.recv(100) == b"hello"
    assert child.wait(10) and child.status == 0


@pytest.mark.parametrize("status", [0, 3, -signal.SIGKILL, -signal.SIGSEGV])
def test_the_status_says_how_it_ended(method, launch, status):
    child = launch(status, "ends_as_told", [], method)
    assert child.wait(10) and child.status == status
    child.kill()  # whoever has its number by now is safe


def test_an_error_outside_the_work_is_printed(method, launch, capfd):
    child = launch(None, "raises", [], method)
    assert child.wait(10) and child.status == 1
    if method != "forkserver":  # that one writes where it wrote when it was started
        assert "ValueError: in a worker" in capfd.readouterr().err


def test_a_worker_can_be_killed_and_waited_for(method, launch):
    child = launch(None, "waits", [], method)
    assert not child.poll() and not child.wait(0.05) and alive(child.pid)
    child.kill()
    assert child.wait(10) and child.status == -signal.SIGKILL
    eventually(lambda: not alive(child.pid))


def test_whether_a_worker_is_stopped(method, launch):
    child = launch(None, "waits", [], method)
    assert not child.is_stopped()
    os.kill(child.pid, signal.SIGSTOP)
    eventually(child.is_stopped)
    child.kill()
    assert child.wait(10) and not child.is_stopped()


def test_the_sentinel_is_readable_after_the_end(method, launch):
    import select

    child = launch(None, "waits", [], method)
    assert not select.select([child.sentinel], [], [], 0)[0]
    child.kill()
    assert select.select([child.sentinel], [], [], 10)[0]


def test_descriptors_are_given_back(method, launch):
    launch(0, "ends_as_told", [], method).wait(10)
    before = descriptors()
    packed = payload.pack(0, "it")
    for _ in range(5):
        child = process.WorkerProcess(0, "it", f"{HERE}:ends_as_told", 0, packed, method)
        assert child.wait(10)
        child.end(0.0)
    os.close(packed)
    assert not descriptors() - before


def test_one_server_for_all_and_another_when_it_has_been_killed(launch):
    first = forkserver.server()
    assert forkserver.server() is first
    os.kill(first.process.pid, signal.SIGKILL)
    child = launch(0, "ends_as_told", [], "forkserver")
    assert child.wait(10) and child.status == 0
    assert forkserver.server() is not first


def test_stop_server_ends_it_and_its_workers(launch):
    child = launch(None, "waits", [], "forkserver")
    pid = forkserver.server().process.pid
    forkserver.stop_server()
    forkserver.stop_server()
    assert child.wait(10)
    eventually(lambda: not alive(child.pid) and not alive(pid))


def test_several_threads_may_launch():
    packed = payload.pack(0, "it")
    found = []

    def work():
        for _ in range(5):
            child = process.WorkerProcess(0, "it", f"{HERE}:ends_as_told", 0, packed, "forkserver")
            found.append((child.wait(30), child.status))
            child.end(0.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(packed)
    assert found == [(True, 0)] * 20


def test_a_fork_of_this_process_has_a_server_of_its_own(tmp_path):
    code = """
        import os, sys
        from towerpack.dataflow import *
        print(list(MultiProcessRunner([[1]], 1, 1)), flush=True)
        flow = MultiProcessRunner([[i] for i in range(1000)], 1, 1)
        iterator = iter(flow)
        next(iterator)
        before = flow.parallel_statistics().workers[0].pid
        if os.fork() == 0:
            del iterator  # not its workers: it must leave them alone
            print(list(MultiProcessRunner([[2]], 1, 1)), flush=True)
            sys.exit()
        os.wait()
        print(sum(dp[0] for dp in iterator), flow.parallel_statistics().workers[0].pid == before)
    """
    assert run(code, cwd=tmp_path).splitlines() == ["[[1]]", "[[2]]", "499500 True"]


def test_an_unknown_start_method():
    with pytest.raises(ValueError, match="forkserver, spawn, fork, received 'threads'"):
        process.check_start_method("threads")
    assert process.check_start_method(None) == "forkserver"


def test_without_an_interpreter_it_says_so(monkeypatch, launch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RuntimeError, match="sys.executable is empty"):
        launch(0, "ends_as_told", [], "spawn")


def test_nothing_is_left_of_all_this():
    forkserver.stop_server()
    assert not [pid for pid in children() if b"forkserver" in cmdline(pid)]


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""

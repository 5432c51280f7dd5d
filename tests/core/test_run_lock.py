"""F24: one run to a directory."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from towerpack.core import logger
from towerpack.core.run_lock import LOCK_FILE, DirectoryInUse, RunLock

HOLDER = """
import sys, time
from towerpack.core import logger
logger.set_logger_dir(sys.argv[1])
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other_run(tmp_path):
    """A live process whose run directory is `tmp_path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def no_log_file():
    yield
    logger.close_log_file()


@pytest.mark.parametrize("action", ["k", "b", "d"])
def test_F24_a_second_run_is_refused_with_pid_and_host_of_the_first(tmp_path, other_run, action):
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(DirectoryInUse, match=f"process {other_run.pid} on {socket.gethostname()}"):
        logger.set_logger_dir(tmp_path, action)
    assert logger.get_logger_dir() is None
    assert sorted(os.listdir(tmp_path)) == before


def test_F24_a_new_directory_is_numbered_beside_a_live_run(tmp_path, other_run):
    assert logger.set_logger_dir(tmp_path, "n") != tmp_path


def test_F24_a_killed_run_leaves_no_stale_lock(tmp_path, other_run):
    other_run.send_signal(signal.SIGKILL)
    other_run.wait()
    assert (tmp_path / LOCK_FILE).exists()
    logger.set_logger_dir(tmp_path)
    assert logger.get_logger_dir() == str(tmp_path)


def test_F24_one_process_may_lock_its_directory_again(tmp_path):
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.release()
    first.release()
    assert (tmp_path / LOCK_FILE).exists()
    second.release()
    assert not (tmp_path / LOCK_FILE).exists()


def test_F24_a_fork_does_not_keep_the_lock_of_its_parent(tmp_path):
    code = """
import os, sys, time
from towerpack.core.run_lock import RunLock
lock = RunLock(sys.argv[1])
if os.fork() == 0:
    print("forked", flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout.readline() == "forked\n"
        with pytest.raises(DirectoryInUse):
            RunLock(tmp_path)
        parent.kill()
        parent.wait()
        RunLock(tmp_path).release()
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_F24_another_users_lock_is_seen(tmp_path, other_run):
    code = (
        "import os, sys\n"
        "from towerpack.core.run_lock import DirectoryInUse, RunLock\n"
        "os.setuid(65534)\n"
        "try:\n    RunLock(sys.argv[1])\n"
        "except DirectoryInUse:\n    print('in use')\n"
    )
    parents = tmp_path.relative_to(tempfile.gettempdir()).parents
    for parent in [tmp_path, *(Path(tempfile.gettempdir(), p) for p in parents if p.name)]:
        parent.chmod(0o777)
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert run.stdout == "in use\n", run.stderr

"""Ctrl-C and SIGTERM reach every rank once; the second and the third signal; SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.launch.launched import PRELUDE, eventually
from towerpack.launch.supervisor import GRACE_SECONDS

COUNT = """
signals = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: signals.append(number))
progress.beat(1)
note(f"ready-{rank}", os.getpid())
while not signals:
    time.sleep(0.01)
note(f"saving-{rank}")
"""
# A rank saves for some time, and other signals may come meanwhile.
SAVE = COUNT + "wait_for('saving-0', 'saving-1')\ntime.sleep(0.5)\nnote(f'saved-{rank}', signals)\n"


def ready(run, ranks=2):
    for rank in range(ranks):
        run.note(f"ready-{rank}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_each_rank_once_and_all_may_save(launch, number):
    run = launch(SAVE + "sys.exit(128 + signals[0])", "--nproc", 2)
    ready(run)
    run.process.send_signal(number)
    assert run.wait() == 128 + number
    for rank in (0, 1):
        assert json.loads(run.note(f"saved-{rank}")) == [number]
    assert f"{number.name}: passed on to 2 ranks, which finish the step and save" in run.err
    assert "attempt 1" not in run.err


def test_ctrl_c_in_a_terminal_reaches_each_rank_once(launch):
    """The terminal sends it to all processes of the foreground, so to the launcher."""
    ours, theirs = os.openpty()
    code = "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    code += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    (launch.directory / "script.py").write_text(PRELUDE + SAVE)
    command = [sys.executable, "-c", code, "-m", "towerpack", "launch", "--nproc", "2"]
    run = launch.run([*command, "script.py"], "terminal", stdin=theirs)
    ready(run)
    os.write(ours, b"\x03")
    assert run.wait() == 130
    assert [run.note(f"saved-{rank}") for rank in (0, 1)] == ["[2]", "[2]"]
    os.close(ours)
    os.close(theirs)


def test_ranks_that_do_not_handle_a_signal_end_by_it(launch):
    code = "note(f'ready-{rank}')\ntime.sleep(1000)"
    for number in (signal.SIGINT, signal.SIGTERM):
        for path in launch.directory.glob("ready-*"):
            path.unlink()
        run = launch(code, "--nproc", 2)
        ready(run)
        run.process.send_signal(number)
        assert run.wait() == 128 + number
        assert "failed" not in run.err


def test_the_second_signal_reaches_them_too_and_the_third_kills_them(launch):
    run = launch(COUNT + "while True:\n    note(f'count-{rank}', len(signals))", "--nproc", 2)
    ready(run)
    for count in ("1", "2"):
        run.process.send_signal(signal.SIGINT)
        for rank in (0, 1):
            eventually(lambda rank=rank, count=count: run.note(f"count-{rank}") == count)
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130  # by the first
    assert "which end at once; a third time, they are killed" in run.err
    assert "SIGTERM: passed on to 2 ranks, which are killed" in run.err


def test_a_signal_between_two_attempts_ends_the_run(launch):
    run = launch("sys.exit(3)", "--max-restarts", 30)
    eventually(lambda: "start again in 4 s: attempt 3" in run.err)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert "attempt 3, rank" not in run.log(0)


def test_a_rank_that_fails_after_a_signal_is_reported_and_does_not_end_the_others(launch):
    seconds = GRACE_SECONDS + 1
    code = COUNT + f"if rank == 1:\n    raise OSError('disk')\ntime.sleep({seconds})\n"
    run = launch(code + "note('saved')\nsys.exit(128 + signals[0])", "--nproc", 2)
    ready(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 1
    assert run.note("saved") == ""
    assert "OSError: disk" in run.err
    assert "attempt 1" not in run.err


def test_ranks_that_were_asked_by_another_process_start_again(launch):
    """As by a scheduler that takes a machine away: all save, and the launcher continues."""
    code = COUNT + "sys.exit(128 + signals[0])"
    run = launch("if attempt:\n    sys.exit(0)" + code, "--nproc", 2)
    ready(run)
    for rank in (0, 1):
        os.kill(int(run.note(f"ready-{rank}")), signal.SIGTERM)
    assert run.wait() == 0, run.err
    assert "a rank was asked to end or to restart; all ranks have saved" in run.err


DESCENDANTS = """
import multiprocessing

def work(name):
    note(name, os.getpid())
    time.sleep(1000)

if __name__ == "__main__":
    if rank:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context = multiprocessing.get_context("spawn")
    context.Process(target=work, args=(f"worker-{rank}",), daemon=True).start()
    subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"])
    wait_for(f"worker-{rank}")
    note(f"ready-{rank}", os.getpid())
    time.sleep(1000)
"""


def test_nothing_survives_a_launcher_that_is_killed(launch):
    run = launch(DESCENDANTS, "--nproc", 2)
    ready(run)
    assert len(run.processes()) >= 10  # the launcher, its guard, the ranks and their descendants
    run.kill()
    run.wait()


def test_ranks_do_not_survive_even_without_the_guard(launch):
    run = launch("note(f'ready-{rank}')\ntime.sleep(1000)", "--nproc", 2)
    ready(run)
    (guard,) = [pid for pid, command in run.processes().items() if "guard.py" in command]
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: guard not in run.processes())
    run.kill()
    run.wait()


def test_a_launcher_without_its_guard_still_works(launch):
    code = "note(f'ready-{rank}')\nwait_for('go')\nsys.exit(0 if attempt else 3)"
    run = launch(code, "--nproc", 2)
    ready(run)
    (guard,) = [pid for pid, command in run.processes().items() if "guard.py" in command]
    os.kill(guard, signal.SIGKILL)
    (launch.directory / "go").touch()
    assert run.wait() == 0, run.err

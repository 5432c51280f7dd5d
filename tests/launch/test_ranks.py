"""One rank: its output when a disk or the console fails, and how a lack of progress is noticed."""

from __future__ import annotations

import os

import pytest

from tests.launch.launched import eventually

PRINT = """
for i in range(300):
    print("out", i, "x" * 1000)
    print("err", i, file=sys.stderr)
    if i == 0:
        time.sleep(0.3)  # until `head` has ended
sys.exit(4)
"""
LINES = sorted(f"{line} {i}" for i in range(300) for line in ("out", "err"))
CONSOLES = ["<&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>&1", "> >(head -n 1) 2>&1"]


@pytest.mark.parametrize("console", CONSOLES)
def test_a_broken_console_changes_neither_the_run_nor_its_exit_code(launch, console):
    run = launch(PRINT, "--max-restarts", 0, shell=console)
    assert run.wait() == 4
    lines = [line.removesuffix(" " + "x" * 1000) for line in run.log(0).splitlines()]
    assert sorted(lines[1:]) == LINES  # the two streams may be out of step


def test_a_full_disk_stops_no_rank(launch, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank in (0, 1):
        (logs / f"rank-{rank}.log").symlink_to("/dev/full")
    code = "print('x' * 100_000)\nnote(f'alive-{rank}-{attempt}')\n"
    run = launch(code + "sys.exit(3 * rank * (1 - attempt))", "--nproc", 2)
    assert run.wait() == 0, run.err
    assert run.out == 2 * ("x" * 100_000 + "\n")
    # Once for each rank of both attempts.
    assert run.err.count("rank-0.log cannot be written, so lines will be missing: [Errno 28]") == 2
    assert run.err.count("rank-1.log cannot be written") == 2
    assert (tmp_path / "alive-1-1").exists()


@pytest.mark.parametrize("logs", ["/proc/logs", "/dev/null/logs"])
def test_logs_that_cannot_be_written_are_refused_at_once(launch, logs):
    run = launch("pass", "--log-dir", logs)
    assert run.wait() == 1
    assert f"'{logs}'" in run.err
    assert "Traceback" not in run.err


def test_what_a_rank_has_started_ends_with_it(launch):
    code = """
    if rank:
        child = subprocess.Popen(["sleep", "1000"])
        note("child", child.pid)
        sys.exit(0)
    wait_for("child")
    pid = int(Path("child").read_text())
    while os.path.exists(f"/proc/{pid}"):  # its new parent reaps it
        time.sleep(0.01)
    note("gone")
    """
    run = launch(code, "--nproc", 2)
    assert run.note("gone") == ""  # while the run continues
    assert run.wait() == 0, run.err


HANG = """
def stuck_in_python():
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=lock.acquire, daemon=True).start()  # one that lives
    lock.acquire()

progress.beat(5)
if attempt == 0 and rank == 1:
    note("hangs")
    stuck_in_python()
if attempt == 1 and rank == 0:
    note("stopped")
    os.kill(os.getpid(), signal.SIGSTOP)
if attempt == 2 and rank == 1:
    progress.finish()
    time.sleep(LIMIT * 2)
    note("finished late")
    sys.exit(0)
end = time.monotonic() + (1000 if attempt < 2 else 0)
while time.monotonic() < end:
    time.sleep(0.05)
    progress.beat(6)
"""
LIMIT = 3


def test_a_rank_without_progress_is_found_and_all_start_again(launch):
    run = launch(f"LIMIT = {LIMIT}" + HANG, "--nproc", 2, "--hang-timeout", LIMIT)
    assert run.wait() == 0, run.err
    assert run.note("finished late") == ""  # a rank is not watched after its training
    message = f"made no progress for {LIMIT} s after step 5 (see --hang-timeout)"
    first, _, second = run.err.partition("all ranks start again in 1 s: attempt 1")
    assert "rank 1 on host" in first
    assert "rank 0 on host" in second
    assert message in " ".join(first.split())
    assert message in " ".join(second.split())
    assert run.note("stopped") == ""
    assert "rank 0 on host" in second.partition("a signal had stopped it")[0].splitlines()[-1]
    # Its stacks, and those of the rank that did not hang.
    assert "in stuck_in_python" in run.log(1)
    assert "most recent call first" in run.log(0)
    assert "attempt 2, rank 1 of 2" in run.log(1)
    assert "attempt 3" not in run.log(1)


def test_a_rank_that_never_begins_is_found_unless_the_watch_is_off(launch):
    run = launch("time.sleep(1000)", "--hang-timeout", 0.5, "--max-restarts", 0)
    assert run.wait() == 137
    assert "before its first step (see --hang-timeout)" in run.err
    run = launch("note('begun')\nwait_for('end')", "--hang-timeout", 0)
    run.note("begun")
    (run.directory / "end").touch()
    assert run.wait() == 0, run.err


def test_a_console_that_does_not_block_loses_nothing(launch):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    run = launch("print('x' * 300_000)", stdout=writer)
    os.close(writer)
    log = run.directory / "logs" / "rank-0.log"
    # More than the console takes, which the log gets first.
    eventually(lambda: log.exists() and log.stat().st_size > 100_000)
    with open(reader) as file:
        assert file.read() == "x" * 300_000 + "\n"
    assert run.wait() == 0, run.err

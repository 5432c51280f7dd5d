"""A terminal that goes away takes nothing with it but what it would have shown."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

from towerpack.core.console import lasting_console

SCRIPT = """
import sys, time
from towerpack.core.progress import Progress
with Progress(100, "working") as bar:
    bar.update()
    print("begun", flush=True)
    sys.stdin.readline()
    for _ in range(99):
        bar.update()
        time.sleep(0.005)  # for the thread that draws
open("finished", "w").close()
"""


def test_F21_a_terminal_that_goes_in_the_middle_of_a_bar_does_not_end_the_run(tmp_path):
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=slave,
    )
    os.close(slave)
    assert process.stdout.readline() == b"begun\n"
    os.close(master)
    process.communicate(b"\n")
    assert (tmp_path / "finished").exists()
    assert process.returncode in (0, 120)  # 120: Python could not flush stderr when it ended


def test_F21_a_broken_pipe_and_a_closed_stream_are_no_errors():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    closed = io.StringIO()
    closed.close()
    for stream in (Broken(), closed):
        lasting_console(stream).print("nobody sees this")
    good = io.StringIO()
    lasting_console(good).print("seen")
    assert good.getvalue() == "seen\n"

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from towerpack.core import logger, progress
from towerpack.core.progress import Progress, lasting_console, track


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch, columns):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    return screen


def test_track_passes_items_on():
    assert list(track(iter("abc"))) == ["a", "b", "c"]
    assert list(track([1, 2], description="x")) == [1, 2]


def test_without_a_terminal_short_work_says_nothing(capsys):
    assert not progress.is_live()
    with Progress(3, "quick") as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""


def test_without_a_terminal_long_work_gives_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    with Progress(3, "reading", samples=1000) as bar:
        bar.note("file 7")
        bar.update(2)
    lines = capsys.readouterr().err
    assert re.search(r"it/s [\d,]+ samples/s", lines)
    assert "reading 2/3" in lines
    assert "file 7" in lines
    assert "\x1b" not in lines


def test_on_a_terminal_a_bar_is_drawn(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert progress.is_live()
    with Progress(2, "reading") as bar:
        bar.update()
        bar.update()
    assert "reading" in screen.getvalue()
    assert "2/2" in screen.getvalue()


def test_the_bar_takes_what_the_texts_leave(monkeypatch):
    screen = terminal(monkeypatch, 80)
    with Progress(2, "日本") as bar:
        bar.note("cost[gen]={x}")  # neither rich's markup nor a format
        bar.update(2)
    last = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue()).split("\r")[-1].strip()
    assert re.fullmatch(r"日本 ━+ 2/2 (.+ it/s )?0:00:00 cost\[gen\]=\{x\}", last)
    assert cell_len(last) == 80


def test_on_a_narrow_terminal_the_end_of_the_line_is_left_out(monkeypatch):
    screen = terminal(monkeypatch, 24)
    with Progress(2, "reading") as bar:
        bar.note("a long note")
        bar.update(2)
    lines = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue()).split("\r")
    assert all(cell_len(line.strip("\n")) <= 24 for line in lines)
    assert "reading ━━━━ 2/2" in lines[-1]


@pytest.mark.filterwarnings("error")
def test_a_notebook_without_ipywidgets_gets_plain_lines_and_no_warnings(monkeypatch, capsys):
    monkeypatch.setattr(logger, "in_notebook", lambda: True)
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    with Progress(2, "reading") as bar:
        bar.update(2)
    assert "reading 2/2" in capsys.readouterr().out


def test_bytes_and_unknown_totals(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress(None, "fetching", "B") as bar:
        bar.update(2048)
    assert "fetching" in screen.getvalue()


def test_F21_a_closed_console_is_not_live(monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    assert not progress.is_live()
    monkeypatch.setattr(sys, "stderr", None)
    assert not progress.is_live()
    with Progress(1, "x") as bar:
        bar.update()
    logger.info("still here")


BAR_SCRIPT = """
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
        [sys.executable, "-W", "error", "-c", BAR_SCRIPT],
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
        lasting_console(stream).print("lost")
    good = io.StringIO()
    lasting_console(good).print("seen")
    assert good.getvalue() == "seen\n"

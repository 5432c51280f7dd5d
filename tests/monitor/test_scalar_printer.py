"""The console: a table for people, lines for files, and no crash where there is no console."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from towerpack.core import logger
from towerpack.monitor import EpochTimes, Monitors, ScalarPrinter

SCRIPT = """
from towerpack import logger
from towerpack.monitor import *
from pathlib import Path
logger.set_logger_dir("run")
monitors = Monitors([ScalarPrinter(), JSONWriter(), RunRecord(), TFEventWriter()])
monitors.open(RunInfo(Path("run")))
for epoch in (1, 2):
    monitors.at(10 * epoch, epoch)
    monitors.put_scalar("validation/error", 0.5 / epoch)
    monitors.put_scalar("cost", 2.0)
    monitors.flush()
monitors.close()
print("done")
"""


def logged(directory):
    return [
        line.partition("] ")[2] for line in (directory / "log.log").read_text().splitlines()[1:]
    ]


@pytest.fixture
def directory(tmp_path):
    yield logger.set_logger_dir(tmp_path / "run")
    logger.close_log_file()


def test_one_sorted_line_per_epoch(directory):
    printer = ScalarPrinter(blacklist=["hidden"])
    for name in ("b", "a", "hidden"):
        printer.process_scalar(name, 0.123456, 7, 2)
    printer.flush(7, 2)
    printer.flush(8, 2)
    assert logged(directory) == ["epoch 2, step 7: a 0.12346  b 0.12346"]


def test_the_verdict_follows_in_place_of_the_times(directory):
    monitors = Monitors([ScalarPrinter()])
    monitors.at(5, 1)
    monitors.put_scalar("cost", 1.0)
    monitors.put_times(EpochTimes(10, 0.1, 9.5, 0.2))
    monitors.flush()
    monitors.flush()
    assert logged(directory) == [
        "epoch 1, step 5: cost 1",
        "time of epoch 1: 1% waiting for data, 95% in the step, 2% in callbacks: "
        "the step is the limit, the data keeps up",
    ]


def test_a_line_per_step_on_request(directory):
    printer = ScalarPrinter(enable_step=True, enable_epoch=False, whitelist=["^cost", "error"])
    for step in (1, 2):
        for name in ("cost", "val_error", "other"):
            printer.process_scalar(name, step, step, 1)
    printer.flush(2, 1)
    assert logged(directory) == ["step 1: cost 1  val_error 1", "step 2: cost 2  val_error 2"]


def test_on_a_terminal_a_table_with_the_change_and_the_line_only_in_the_file(tmp_path):
    master, slave = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT], stdout=slave, stderr=slave, cwd=tmp_path
    )
    os.close(slave)
    seen = io.BytesIO()
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # how Linux says that the other end has gone
            break
        if not part:
            break
        seen.write(part)
    os.close(master)
    text = seen.getvalue().decode()
    assert run.wait() == 0, text
    assert "epoch 1, step 10" in text and "validation/error" in text and "-0.25" in text
    assert "epoch 2, step 20: cost 2" not in text
    assert logged(tmp_path / "run")[-1] == "epoch 2, step 20: cost 2  validation/error 0.25"


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-", ">/dev/full 2>/dev/full", ""])
def test_F21_no_console_no_terminal_and_a_home_that_cannot_be_written(tmp_path, closed):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace('print("done")', 'Path("done").touch()'))
    environment = {**os.environ, "HOME": "/proc/nowhere", "TERM": "dumb"}
    environment.pop("XDG_CACHE_HOME", None)
    run = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -W error script.py {closed}"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "done").exists(), run.stderr
    assert run.returncode in (0, 120)  # 120: Python could not flush /dev/full when it ended
    assert logged(tmp_path / "run")[-1] == "epoch 2, step 20: cost 2  validation/error 0.25"
    assert "\x1b" not in run.stderr


def test_the_table_is_aligned_and_shows_names_as_they_are(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")  # no colours
    printer = ScalarPrinter()
    for epoch in (1, 2):
        printer.process_scalar("loss[gen]", 0.5 / epoch, 5, epoch)
        printer.process_scalar("[bold]", 12345, 5, epoch)
        printer.flush(5 * epoch, epoch)
    lines = [line.rstrip() for line in sys.stderr.getvalue().splitlines()]
    assert lines == [
        "epoch 1, step 5",
        " [bold]     12345",
        " loss[gen]    0.5",
        "epoch 2, step 10",
        " [bold]     12345",
        " loss[gen]   0.25  -0.25",
    ]


def test_F21_a_table_for_a_terminal_that_has_gone_is_lost_and_nothing_else(directory, monkeypatch):
    class Gone(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    printer = ScalarPrinter()
    printer.process_scalar("cost", 1.0, 5, 1)
    printer.flush(5, 1)
    assert logged(directory) == ["epoch 1, step 5: cost 1"]

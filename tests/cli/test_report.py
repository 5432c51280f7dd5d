"""`towerpack report` and `towerpack runs`."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.report.made_runs import make_run
from towerpack.cli import app
from towerpack.cli.report import fitting_table
from towerpack.report import find_runs


@pytest.fixture
def directories(tmp_path):
    make_run(tmp_path / "log" / "a", epochs=2, pictures=False)
    make_run(
        tmp_path / "log" / "b", epochs=1, pictures=False, error=ValueError("[red]bad"), max_epoch=5
    )
    return tmp_path / "log"


def run(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_report_writes_a_page(directories):
    result = run("report", directories / "a")
    assert result.exit_code == 0, result.output
    assert "1 run -> " in result.output
    assert "<title>a – towerpack</title>" in (directories / "a" / "report.html").read_text()


def test_report_of_several_runs(directories):
    result = run("report", directories / "a", directories / "b", "-o", "x/both.html")
    assert result.exit_code == 0, result.output
    assert "<title>a · b – towerpack</title>" in Path("x/both.html").read_text()


def test_report_says_what_is_missing(tmp_path):
    result = run("report", tmp_path / "none")
    assert result.exit_code == 1 and "error: expected a run's directory" in result.output
    assert run("report", tmp_path, "--serve", "-o", "x.html").exit_code == 2


@pytest.mark.slow
def test_report_serves_until_it_is_interrupted(directories):
    server = subprocess.Popen(
        [sys.executable, "-m", "towerpack", "report", directories / "a", "--serve"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())[0]
        assert b"<title>a" in urllib.request.urlopen(address, timeout=30).read()
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        server.stdout.close()


def test_runs_lists_them(directories):
    result = run("runs", directories)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines() if line.strip()]
    assert lines[0] == [
        "run",
        "state",
        "epoch",
        "step",
        "steps/s",
        "devices",
        "best",
        "size",
        "changed",
    ]
    assert lines[2][:5] == ["b", "failed:", "ValueError", "1/5", "200"]
    assert lines[3][:4] == ["a", "finished", "2/2", "400"]
    assert "val_error" in lines[3] and "kB" in lines[3]


def test_runs_shows_the_settings_that_differ(directories, tmp_path):
    for name, lr in (("c", 0.1), ("d", 0.01)):
        settings = {"seed": 0, "optimizer": {"lr": lr, "name": "adam"}, "units": [8] * (lr < 0.1)}
        make_run(tmp_path / name, epochs=1, pictures=False, settings=settings)
    both = run("runs", tmp_path / "c", tmp_path / "d", directories / "a")
    rows = {line.split()[0]: line for line in both.output.splitlines() if line.strip()}
    assert "optimizer.lr=0.1  units=[] " in rows["c"]
    assert "optimizer.lr=0.01  units=[8] " in rows["d"]
    assert "log/a" in rows and "seed" not in both.output and "adam" not in both.output
    again = run("runs", tmp_path / "c", tmp_path / "c", directories)
    assert len(again.output.strip().splitlines()) == 5 and "settings" not in again.output


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60])
def test_the_list_of_runs_fits_on_a_terminal_of_any_width(directories, width):
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    found = find_runs(directories)
    made = fitting_table(found, directories, time.time(), console)
    console.print(made)
    lines = console.export_text().strip().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert len(lines) == 2 + len(found) or width == 60, lines
    heads = lines[0].split()
    assert {"run", "state", "epoch", "steps/s", "best", "size"} <= set(heads)
    assert ("devices" in heads) == (width >= 100)


def test_runs_where_there_are_none(tmp_path):
    assert "no runs under" in run("runs", tmp_path).output
    assert run("runs", tmp_path / "missing").exit_code == 1

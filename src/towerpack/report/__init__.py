"""Reads the directory of a run or a sweep and shows it as one self-contained HTML page.

Nothing here imports TensorFlow, so the files of the monitors can be read on any machine.
"""

from towerpack.report.page import render_page, serve_report
from towerpack.report.run_reader import read_run
from towerpack.report.runs import RunSummary, find_runs
from towerpack.report.sweep import open_study, read_sweep, render_sweep

__all__ = [
    "RunSummary",
    "find_runs",
    "open_study",
    "read_run",
    "read_sweep",
    "render_page",
    "render_sweep",
    "serve_report",
]

"""Reads the directory of a run and shows it as one self-contained HTML page.

Nothing here imports TensorFlow, so the files of the monitors can be read on any machine.
"""

from towerpack.report.page import render_page, serve_report
from towerpack.report.run_reader import read_run
from towerpack.report.runs import RunSummary, find_runs

__all__ = ["RunSummary", "find_runs", "read_run", "render_page", "serve_report"]

"""Reads the directory of a run and shows it as one HTML page that needs nothing else.

Nothing here imports TensorFlow: it reads what the monitors wrote, on any machine.
"""

from towerpack.report.page import render_page, serve_report
from towerpack.report.run_list import RunSummary, find_runs
from towerpack.report.run_reader import read_run

__all__ = ["RunSummary", "find_runs", "read_run", "render_page", "serve_report"]

"""A run one can look at: its directory read, and shown as one HTML page that needs nothing else.

TensorFlow-free: it reads what the monitors wrote, from any machine that sees the directory.
"""

from towerpack.report.page import render_page, serve_report
from towerpack.report.run_list import RunSummary, find_runs
from towerpack.report.run_reader import read_run

__all__ = ["RunSummary", "find_runs", "read_run", "render_page", "serve_report"]

"""Where the numbers of a run go: TensorBoard's event files, JSON, the console.

TensorFlow-free. One protocol, `MonitorBase`; `Monitors` is what the trainer holds.
"""

from towerpack.monitor.base import MonitorBase, RunInfo
from towerpack.monitor.event_file import TFEventWriter
from towerpack.monitor.json_writer import JSONWriter
from towerpack.monitor.monitors import Monitors
from towerpack.monitor.scalar_printer import ScalarPrinter

__all__ = ["JSONWriter", "MonitorBase", "Monitors", "RunInfo", "ScalarPrinter", "TFEventWriter"]

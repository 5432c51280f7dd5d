"""Where the numbers of a run go: TensorBoard's event files, JSON, the console, trackers.

TensorFlow-free. One protocol, `MonitorBase`; `Monitors` is what the trainer holds. `RunRecord`
keeps the facts of the run itself, and `verdict` says where its time goes.
"""

from towerpack.monitor.base import MonitorBase, Monitors, RunInfo
from towerpack.monitor.event_file import TFEventWriter
from towerpack.monitor.json_writer import JSONWriter
from towerpack.monitor.run_record import RunRecord
from towerpack.monitor.scalar_printer import ScalarPrinter
from towerpack.monitor.trackers import CometMLMonitor, MLflowMonitor, SendMonitorData, WandbMonitor
from towerpack.monitor.verdict import CallbackCost, EpochTimes, StageClock, verdict

__all__ = [
    "CallbackCost",
    "CometMLMonitor",
    "EpochTimes",
    "JSONWriter",
    "MLflowMonitor",
    "MonitorBase",
    "Monitors",
    "RunInfo",
    "RunRecord",
    "ScalarPrinter",
    "SendMonitorData",
    "StageClock",
    "TFEventWriter",
    "WandbMonitor",
    "verdict",
]

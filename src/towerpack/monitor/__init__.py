"""Where the numbers of a run go: TensorBoard's event files, JSON, the console, trackers.

Nothing here imports TensorFlow. `MonitorBase` is the interface of all monitors, and the trainer
holds them in `Monitors`. `RunRecord` stores facts about the run. `verdict` states where its time
goes.
"""

from towerpack.monitor.base import MonitorBase, Monitors, RunInfo
from towerpack.monitor.event_file import TFEventWriter
from towerpack.monitor.json_writer import JSONWriter
from towerpack.monitor.rank_times import RankTimes
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
    "RankTimes",
    "RunInfo",
    "RunRecord",
    "ScalarPrinter",
    "SendMonitorData",
    "StageClock",
    "TFEventWriter",
    "WandbMonitor",
    "verdict",
]

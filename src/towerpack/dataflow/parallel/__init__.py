"""Parallel flows: the same stream, made by worker processes or threads."""

from towerpack.dataflow.parallel.map_data import MultiProcessMapData, MultiProcessMapDataZMQ
from towerpack.dataflow.parallel.pool import WorkerDied
from towerpack.dataflow.parallel.report import WorkerError
from towerpack.dataflow.parallel.runner import (
    MultiProcessPrefetchData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    PrefetchData,
    PrefetchDataZMQ,
)

__all__ = [
    "MultiProcessMapData",
    "MultiProcessMapDataZMQ",
    "MultiProcessPrefetchData",
    "MultiProcessRunner",
    "MultiProcessRunnerZMQ",
    "PrefetchData",
    "PrefetchDataZMQ",
    "WorkerDied",
    "WorkerError",
]

"""Parallel flows: the same stream, made by worker processes or threads."""

from towerpack.dataflow.parallel.map_and_batch import (
    MultiProcessMapAndBatchData,
    MultiProcessMapAndBatchDataZMQ,
)
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
from towerpack.dataflow.parallel.shared_array import MultiProcessMapDataComponentSharedArray
from towerpack.dataflow.parallel.stage import kept_workers
from towerpack.dataflow.parallel.threads import (
    MultiThreadMapData,
    MultiThreadPrefetchData,
    MultiThreadRunner,
)

__all__ = [
    "MultiProcessMapAndBatchData",
    "MultiProcessMapAndBatchDataZMQ",
    "MultiProcessMapData",
    "MultiProcessMapDataComponentSharedArray",
    "MultiProcessMapDataZMQ",
    "MultiProcessPrefetchData",
    "MultiProcessRunner",
    "MultiProcessRunnerZMQ",
    "MultiThreadMapData",
    "MultiThreadPrefetchData",
    "MultiThreadRunner",
    "PrefetchData",
    "PrefetchDataZMQ",
    "WorkerDied",
    "WorkerError",
    "kept_workers",
]

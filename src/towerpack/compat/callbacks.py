"""Old names and arguments of callbacks."""

from __future__ import annotations

from typing import Any

from towerpack import callbacks
from towerpack.callbacks import Callback, DumpTensorAsImage, DumpTensors, PeakMemoryTracker
from towerpack.core.every import Every

__all__ = [
    "DumpParamAsImage",
    "DumpTensor",
    "GPUMemoryTracker",
    "GraphProfiler",
    "MergeAllSummaries",
    "MovingAverageSummary",
    "RunUpdateOps",
]

DumpParamAsImage = DumpTensorAsImage
DumpTensor = DumpTensors
GPUMemoryTracker = PeakMemoryTracker


class RunUpdateOps(Callback):
    """Does nothing: updates made in a tower, by batch normalization for example, run with the step.

    Old scripts had to request them.
    """

    def __init__(self, collection: Any = None):
        pass


class MovingAverageSummary(callbacks.MovingAverageSummary):
    """Ignores both arguments: there is one collection, and its updates are part of the step."""

    def __init__(self, collection: Any = None, train_op: Any = None):
        super().__init__()


class MergeAllSummaries(callbacks.MergeAllSummaries):
    """Ignores `run_alone` and `key`: a training step computes the summaries of one collection."""

    def __init__(self, period: int | str | Every = 0, run_alone: bool = False, key: Any = None):
        super().__init__(period)


class GraphProfiler(callbacks.GraphProfiler):
    """Ignores its arguments: every trace contains what they selected."""

    def __init__(
        self, dump_metadata: bool = False, dump_tracing: bool = True, dump_event: bool = False
    ):
        super().__init__()

"""The share of one process in a stream that several processes train on together."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack.core.prefetch import BATCHES
from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.parallel.map_data import TRAVEL_BYTES
from towerpack.dataflow.parallel.runner import MultiProcessRunner
from towerpack.dataflow.parallel.stage import ParallelStage, ProcessStage
from towerpack.dataflow.stage.base import IndexStage, Stage, refuse_dropped, runs
from towerpack.dataflow.stage.batch import BatchData
from towerpack.dataflow.statistics import walk
from towerpack.dataflow.workers.payload import travels


@dataclass(frozen=True)
class Share:
    """Which datapoints of an endless stream belong to rank `rank` of `ranks`.

    Datapoint `i` belongs to rank `(i // unit) % ranks`: each rank takes `unit` in turn.

    >>> share = Share(rank=1, ranks=2, unit=2)
    >>> [i for i in range(8) if share.has(i)]
    [2, 3, 6, 7]
    >>> share.place(np.arange(4)).tolist()
    [2, 3, 6, 7]
    """

    rank: int
    ranks: int
    unit: int = 1

    def has(self, number: int) -> bool:
        """Whether datapoint `number` of the stream belongs to this rank."""
        return (number // self.unit) % self.ranks == self.rank

    def place(self, own: Any) -> Any:
        """The number in the stream of this rank's datapoint number `own`."""
        turn, offset = np.divmod(own, self.unit)
        return (turn * self.ranks + self.rank) * self.unit + offset


class ShareData(IndexStage):
    """The datapoints of one rank, from number `begin` of the endless stream of `ds`.

    The share continues from epoch to epoch of `ds`, so an epoch of this flow, which has as many
    datapoints as one of `ds`, is read from several. The other datapoints are not read, so none may
    be dropped: `DroppedDatapoint` is raised instead. With `batch`, ranks take that many consecutive
    datapoints as one.
    """

    keeps_rows = True
    transparent = True
    reorders = True
    drops = False

    def __init__(self, ds: DataFlow, share: Share, begin: int, batch: int = 1):
        self.ds, self.share, self.begin, self.batch = ds, share, begin, batch
        self._batches = ds.num_indices() // batch

    def inputs(self) -> Sequence[DataFlow]:
        return (self.ds,)

    def label(self) -> str:
        return f"the share of {self.ds.label()}"

    def __len__(self) -> int:
        return self._batches * self.batch

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        rows = super().rows(indices, epoch)
        refuse_dropped(self, rows, indices)
        return rows

    def parts(self, indices: np.ndarray, epoch: Epoch) -> Iterable[tuple[DataFlow, Any, Epoch]]:
        own, row = np.divmod(epoch.number * len(self) + indices, self.batch)
        epochs, batches = np.divmod(self.begin + self.share.place(own), self._batches)
        for number, inner in runs(epochs, batches * self.batch + row):
            yield self.ds, inner, epoch.at(number)


def by_index(flow: DataFlow) -> DataFlow | None:
    """The same stream as a flow with random access, without workers; None if there is none."""
    whole = without_workers(flow)
    drops = any(stage.drops for stage in walk(flow))
    return whole if whole.random_access and not drops else None


def share_of(flow: DataFlow, share: Share, begin: int) -> DataFlow | None:
    """The share of a rank in `flow`, of which only this rank's datapoints are made.

    It begins at datapoint `begin` of the endless stream. None if all datapoints must be made to
    find those of the rank, because the flow has no random access or drops datapoints.
    """
    whole = by_index(flow)
    if whole is None:
        return None
    made: DataFlow
    if type(whole) is BatchData and not whole.remainder:  # keeps its ways to read many batches
        made = copy.copy(whole)
        made.ds = ShareData(whole.ds, share, begin, whole.batch_size)
    else:
        made = ShareData(whole, share, begin)
    processes = [stage for stage in walk(flow) if isinstance(stage, ProcessStage)]
    workers = max((stage.num_proc for stage in processes), default=0)
    if not workers:
        return made
    if not travels(made, TRAVEL_BYTES):
        return None
    options = processes[0].options
    return MultiProcessRunner(
        made, BATCHES, workers, start_method=options.start_method, timeout=options.timeout
    )


def without_workers(flow: DataFlow) -> DataFlow:
    """The same stream, made in this process: workers never change it."""
    if isinstance(flow, ParallelStage):
        return without_workers(flow.inputs()[0])
    if isinstance(flow, Stage) and (below := without_workers(flow.ds)) is not flow.ds:
        flow = copy.copy(flow)
        flow.ds = below
    return flow

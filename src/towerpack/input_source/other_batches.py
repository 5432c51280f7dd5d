"""A position in a flow, for a run that cuts the flow into batches of another size.

A run that goes on with twice as many towers has batches of half the size. Flows count in batches or
in datapoints, each as it likes; so a position says besides how many datapoints of the pass were
taken, and in batches of how many.
"""

from __future__ import annotations

from typing import Any

from towerpack.core import logger
from towerpack.dataflow import BatchData
from towerpack.dataflow.base import DataFlow, State
from towerpack.dataflow.statistics import walk
from towerpack.input_source.journal import Mark


def declared_batch_size(flow: DataFlow) -> int | None:
    """How many datapoints the flow puts into a batch, by its last stage that makes batches."""
    for stage in walk(flow):
        size = getattr(stage, "batch_size", None)
        if isinstance(size, int):
            return size
    return None


def adapted(state: Any, flow: DataFlow, batch_size: int | None) -> State:
    """The state that a run saved, for a flow with batches of this size.

    No datapoint is left out or comes twice if what was taken are whole batches of the new size;
    otherwise the last ones come again, and that is said. A `BatchData` goes there at once; of other
    flows the pass is read up to there and dropped.
    """
    begin = Mark.of_state(state)
    saved: State | None = state.get("datapoints")
    if saved is None or batch_size is None or saved["batch_size"] == batch_size:
        return state
    batches, again = divmod(saved["taken"], batch_size)
    if again:
        logger.warning(
            "the checkpoint was saved after %d datapoints of a pass, which are no whole batches of "
            "%d: the last %d of them come a second time",
            saved["taken"],
            batch_size,
            again,
        )
    datapoints = {**saved, "taken": batches * batch_size, "batch_size": batch_size}
    before, rest = divmod(begin.batch * saved["batch_size"], batch_size)
    same_pass = begin.flow["epoch"] == saved["epoch"]
    if isinstance(flow, BatchData) and same_pass and not rest and before <= batches:
        mark = Mark(0, begin.flow, before, batches - before)
    else:
        mark = Mark(0, {"epoch": saved["epoch"]}, 0, batches)
    return {**mark.state(0), "datapoints": datapoints}

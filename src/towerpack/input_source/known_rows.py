"""How many rows every batch of a flow has, where the flow says so by how it is made."""

from __future__ import annotations

from typing import Any

from towerpack import dataflow as flows
from towerpack._tensorflow import tf

PASSES_ON: frozenset[type[flows.DataFlow]] = frozenset(
    {
        flows.CacheData,
        flows.FixedSizeData,
        flows.LocallyShuffleData,
        flows.MultiProcessRunner,
        flows.MultiProcessRunnerZMQ,
        flows.PrintData,
        flows.RepeatedData,
        flows.RepeatedDataPoint,
        flows.SelectComponent,
        flows.ShardData,
        flows.ShuffleData,
        flows.TakeData,
        flows.TestDataSpeed,
    }
)
"""Stages that leave datapoints out, repeat or reorder them, but give each one as it came."""


def known_rows(flow: flows.DataFlow) -> int | None:
    """How long the first axis of every component of every batch is; None unless that is certain.

    It is where the last stage that makes batches leaves out an incomplete one, and no function
    behind it could change them. Of a subclass nothing is known.

    >>> batches = flows.BatchData(flows.DataFromList([[1], [2]]), 2)
    >>> known_rows(flows.RepeatedData(batches, 3))
    2
    >>> known_rows(flows.MapData(batches, lambda dp: dp)) is None
    True
    """
    stage: Any = flow
    while type(stage) in PASSES_ON:
        stage = stage.ds
    batches = type(stage) is flows.BatchData and not stage.use_list
    if batches or type(stage) is flows.MultiProcessMapAndBatchData:
        return None if stage.remainder else stage.batch_size
    return None


def with_rows(shape: Any, rows: int | None) -> Any:
    """The shape with its first dimension known, if it was not."""
    if rows is None or not shape.rank or shape[0] is not None:
        return shape
    return tf.TensorShape([rows, *shape[1:]])

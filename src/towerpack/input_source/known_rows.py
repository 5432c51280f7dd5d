"""How many rows every batch of a flow has, where the flow says so by how it is made."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.dataflow import (
    BatchData,
    CacheData,
    FixedSizeData,
    LocallyShuffleData,
    MultiProcessMapAndBatchData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    PrintData,
    RepeatedData,
    RepeatedDataPoint,
    SelectComponent,
    ShardData,
    ShuffleData,
    TakeData,
    TestDataSpeed,
)
from towerpack.dataflow.base import DataFlow

PASSES_ON: frozenset[type[DataFlow]] = frozenset(
    {
        CacheData,
        FixedSizeData,
        LocallyShuffleData,
        MultiProcessRunner,
        MultiProcessRunnerZMQ,
        PrintData,
        RepeatedData,
        RepeatedDataPoint,
        SelectComponent,
        ShardData,
        ShuffleData,
        TakeData,
        TestDataSpeed,
    }
)
"""Stages that leave datapoints out, repeat or reorder them, but give each one as it came."""


def known_rows(flow: DataFlow) -> int | None:
    """How long the first axis of every component of every batch is; None unless that is certain.

    It is where the last stage that makes batches leaves out an incomplete one, and no function
    behind it could change them. Of a subclass nothing is known.

    >>> from towerpack.dataflow import DataFromList, MapData
    >>> batches = BatchData(DataFromList([[1], [2]]), 2)
    >>> known_rows(RepeatedData(batches, 3)), known_rows(MapData(batches, lambda dp: dp))
    (2, None)
    """
    stage: Any = flow
    while type(stage) in PASSES_ON:
        stage = stage.ds
    batches = type(stage) is BatchData and not stage.use_list
    if batches or type(stage) is MultiProcessMapAndBatchData:
        return None if stage.remainder else stage.batch_size
    return None


def with_rows(shape: Any, rows: int | None) -> Any:
    """The shape with its first dimension known, if it was not."""
    if rows is None or not shape.rank or shape[0] is not None:
        return shape
    return tf.TensorShape([rows, *shape[1:]])

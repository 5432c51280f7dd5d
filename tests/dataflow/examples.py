"""An example, or several, of every flow class, for the laws.

Stages are tried over an input with random access, over one that can only be iterated and over one
that drops datapoints without having said so.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.dataflow.laws import Example
from towerpack import dataflow as df
from towerpack.dataflow import DataFlow


class Random(df.RNGDataFlow):
    """A flow as in old scripts: other datapoints in each epoch, and iteration only."""

    def __init__(self, size: int = 7):
        self.count = size

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield [number, self.rng.randint(1000)]

    def __len__(self) -> int:
        return self.count


class OldProxy(df.ProxyDataFlow):
    def __iter__(self) -> Iterator[Any]:
        for datapoint in self.ds:
            yield [*datapoint, "old"]


class Squares(DataFlow):
    def __len__(self) -> int:
        return 4

    def rows(self, indices: Any, epoch: Any) -> list[Any]:
        return [[int(i), int(i) ** 2] for i in indices]


class Doubled(df.Stage):
    def apply(self, rows: list[Any], indices: Any, epoch: Any) -> list[Any]:
        return [None if row is None else [*row, *row] for row in rows]


class CallsSuper(df.DataFromList):
    def __iter__(self) -> Iterator[Any]:
        for datapoint in super().__iter__():
            yield [datapoint[0], "super"]


class MapDataset:
    """As torch's map-style datasets: `__getitem__` and `__len__`, no `__iter__`."""

    def __getitem__(self, index: int) -> Any:
        return index, index * 2

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]

    def __len__(self) -> int:
        return 5


def listed(size: int = 7) -> DataFlow:
    return df.DataFromList([[i, i * 10] for i in range(size)], shuffle=True, seed=3)


def in_order(size: int = 7) -> DataFlow:
    return df.DataFromList([[i, i * 10] for i in range(size)])


def iterated(size: int = 7) -> DataFlow:
    return Random(size)


def dropping(size: int = 9) -> DataFlow:
    return df.MapData(listed(size), lambda dp: None if dp[0] % 3 == 0 else dp)


def filtered(size: int = 9) -> DataFlow:
    return df.FilterData(listed(size), lambda dp: dp[0] % 3 != 0)


def numbers(size: int) -> DataFlow:
    return df.DataFromList(list(range(size)), shuffle=False)


def counted(size: int) -> DataFlow:
    """As `numbers`, but it can only be iterated and has no length."""
    return df.DataFromGenerator(lambda: iter(range(size)))


INPUTS = {"listed": listed, "iterated": iterated, "dropping": dropping, "filtered": filtered}


def stage(
    name: str,
    make: Callable[[DataFlow], DataFlow],
    inputs: tuple[str, ...] = tuple(INPUTS),
    **options: Any,
) -> list[Example]:
    def example(which: str) -> Example:
        source = INPUTS[which]
        covers = getattr(df, name.split()[0])
        options.setdefault("random", True)
        return Example(f"{name}-{which}", lambda: make(source()), covers, **options)

    return [example(which) for which in inputs]


def merged(
    name: str, make: Callable[[list[DataFlow]], DataFlow], sizes: tuple[int, ...], **options: Any
) -> list[Example]:
    covers = getattr(df, name.split()[0])
    options.setdefault("random", True)
    combinations = [("listed", "listed"), ("listed", "iterated"), ("dropping", "listed")]
    combinations += [("filtered", "iterated")]

    def example(pair: tuple[str, str]) -> Example:
        def flow() -> DataFlow:
            return make([INPUTS[which](size) for which, size in zip(pair, sizes, strict=True)])

        return Example(f"{name}-{'-'.join(pair)}", flow, covers, **options)

    return [example(pair) for pair in combinations]


def filled_queue() -> DataFlow:
    filled: Any = queue.SimpleQueue()
    for number in range(200):
        filled.put([number])
    return df.DataFromQueue(filled)


def arrays(**kwargs: Any) -> DataFlow:
    x = np.arange(20, dtype=">f4").reshape(10, 2)
    return df.DataFromArrays({"x": x, "y": np.arange(10)}, **kwargs)


def noisy(dp: Any, rng: Any) -> Any:
    return [dp[0], dp[1] + rng.integers(1000)]


def ragged(ds: DataFlow) -> DataFlow:
    return df.MapData(ds, lambda dp: [np.full(1 + dp[0] % 3, dp[1]), dp[1]])


def unpaired(flows: list[DataFlow]) -> DataFlow:
    return df.JoinData(flows, paired=False)


def first_of_two(df_lists: list[DataFlow]) -> DataFlow:
    return df.RandomChooseData([(df_lists[0], 0.3), (df_lists[1], 0.7)], seed=4)


SOURCES = [
    Example("DataFlow by index", Squares, DataFlow),
    Example("RNGDataFlow", Random, df.RNGDataFlow, random=True),
    Example("ProxyDataFlow", lambda: df.ProxyDataFlow(listed()), df.ProxyDataFlow, random=True),
    Example("ProxyDataFlow generator", lambda: OldProxy(listed()), df.ProxyDataFlow, random=True),
    Example("ProxyDataFlow twice", lambda: OldProxy(OldProxy(Random())), df.ProxyDataFlow),
    Example(
        "DataFromList super", lambda: CallsSuper([[1], [2], [3], [4]], shuffle=True), random=True
    ),
    Example("Source sequence", lambda: df.as_flow(range(5)), df.Source),
    Example("Source map dataset", lambda: df.Source(MapDataset()), df.Source),
    Example("Source set", lambda: df.Source({1, 2, 3}), df.Source),
    Example("DataFromArrays", arrays, df.DataFromArrays),
    Example("DataFromArrays shuffled", lambda: arrays(shuffle=True, seed=5), random=True),
    Example("DataFromArrays leaf", lambda: df.DataFromArrays(np.eye(4), shuffle=True), random=True),
    Example("DataFromList", listed, df.DataFromList, random=True),
    Example("DataFromList in order", in_order),
    Example("DataFromList empty", lambda: df.DataFromList([])),
    Example("DataFromIterable", lambda: df.DataFromIterable([1, 2, 3]), df.DataFromIterable),
    Example("DataFromIterable dict", lambda: df.DataFromIterable({"a": 1, "b": 2})),
    Example(
        "DataFromGenerator", lambda: df.DataFromGenerator(lambda: iter("abc")), df.DataFromGenerator
    ),
    Example("DataFromQueue", filled_queue, df.DataFromQueue, endless=True, shared=True),
    Example("FakeData", lambda: df.FakeData([[2, 3], []], 5), df.FakeData, random=True),
    Example(
        "FakeData kinds",
        lambda: df.FakeData([[2], [3]], 4, dtype=["uint8", "float64"], domain=[(0, 255), (-1, 1)]),
        random=True,
    ),
    Example("FakeData fixed", lambda: df.FakeData([[2]], 4, random=False)),
]

STAGES = [
    *[
        Example(f"Stage-{name}", lambda make=make: Doubled(make()), df.Stage, random=True)
        for name, make in INPUTS.items()
    ],
    *stage("MapData", lambda ds: df.MapData(ds, lambda dp: [*dp, "mapped"])),
    *stage("MapData rng", lambda ds: df.MapData(ds, noisy, seed=9)),
    *stage("MapData drops", lambda ds: df.MapData(ds, lambda dp: dp if dp[0] % 2 else None)),
    *stage("MapData twice", lambda ds: df.MapData(df.MapData(ds, noisy), noisy)),
    *stage("MapDataComponent", lambda ds: df.MapDataComponent(ds, lambda x: x + 0.5, 1)),
    *stage(
        "MapDataComponent rng",
        lambda ds: df.MapDataComponent(ds, lambda x, rng: x + rng.random(), index=0),
    ),
    *stage("SelectComponent", lambda ds: df.SelectComponent(ds, [1, 0, 1])),
    *stage("FilterData", lambda ds: df.FilterData(ds, lambda dp: dp[0] != 4)),
    *stage("BatchData", lambda ds: df.BatchData(ds, 2)),
    *stage("BatchData remainder", lambda ds: df.BatchData(ds, 2, remainder=True)),
    *stage("BatchData list", lambda ds: df.BatchData(ds, 4, remainder=True, use_list=True)),
    *stage("BatchData batched", lambda ds: df.BatchData(df.BatchData(ds, 2), 2)),
    *stage("BatchData mapped", lambda ds: df.MapData(df.BatchData(ds, 2), lambda dp: dp)),
    *stage("BatchDataByShape", lambda ds: df.BatchDataByShape(ragged(ds), 2, 0)),
    *stage(
        "BatchDataByShape remainder",
        lambda ds: df.BatchDataByShape(ragged(ds), 2, 0, remainder=True),
    ),
    *stage("BucketBatchData", lambda ds: df.BucketBatchData(ragged(ds), 2, [1, 2])),
    *stage(
        "BucketBatchData cut",
        lambda ds: df.BucketBatchData(ragged(ds), [3, 2], [1], remainder=False, pad_value=-1),
    ),
    *stage("FixedSizeData", lambda ds: df.FixedSizeData(ds, 3)),
    *stage("FixedSizeData longer", lambda ds: df.FixedSizeData(ds, 16)),
    *stage("FixedSizeData again", lambda ds: df.FixedSizeData(ds, 9, keep_state=False)),
    *stage("RepeatedData", lambda ds: df.RepeatedData(ds, 2)),
    *stage("RepeatedData endless", lambda ds: df.RepeatedData(ds, -1), endless=True),
    *stage("RepeatedData batched", lambda ds: df.RepeatedData(df.BatchData(ds, 2), 2)),
    *stage("RepeatedDataPoint", lambda ds: df.RepeatedDataPoint(ds, 2)),
    *stage("RepeatedDataPoint once", lambda ds: df.RepeatedDataPoint(ds, 1)),
    *stage("TakeData", lambda ds: df.TakeData(ds, 4)),
    *stage("TakeData more", lambda ds: df.TakeData(ds, 100)),
    *stage("TakeData none", lambda ds: df.TakeData(ds, 0), random=False),
    *stage("TakeData endless", lambda ds: df.TakeData(df.RepeatedData(ds, -1), 11)),
    *stage("ShardData", lambda ds: df.ShardData(ds, 3, 1)),
    *stage("ShuffleData", lambda ds: df.ShuffleData(ds), ("listed", "dropping", "filtered")),
    *stage("LocallyShuffleData", lambda ds: df.LocallyShuffleData(ds, 3)),
    *stage("LocallyShuffleData reuse", lambda ds: df.LocallyShuffleData(ds, 4, 3, 2, seed=8)),
    *stage("LocallyShuffleData large", lambda ds: df.LocallyShuffleData(ds, 100)),
    *stage("CacheData", lambda ds: df.CacheData(ds), random=False),
    *stage("CacheData shuffle", lambda ds: df.CacheData(ds, shuffle=True)),
    *stage("PrintData", lambda ds: df.PrintData(ds, num=0)),
    *stage("TestDataSpeed", lambda ds: df.TestDataSpeed(ds, size=3)),
    *merged("ConcatData", df.ConcatData, (4, 5)),
    *merged("JoinData", unpaired, (5, 6)),
    *merged("RandomMixData", df.RandomMixData, (4, 5))[:3],
    *merged("RandomChooseData", first_of_two, (6, 6)),
    Example("JoinData itself", lambda: unpaired([listed(), listed()]), random=True),
    Example(
        "JoinData in order", lambda: df.JoinData([in_order(), df.FakeData([[2]])]), random=True
    ),
    Example("ConcatData arrays", lambda: df.ConcatData([arrays(shuffle=True), arrays()])),
    Example(
        "WeightedChooseData",
        lambda: df.WeightedChooseData(in_order(), np.arange(7), size=5),
        df.WeightedChooseData,
        random=True,
    ),
    *[
        Example(
            f"BalancedData {mode}",
            lambda mode=mode: df.BalancedData(in_order(), label=lambda dp: dp[0] > 4, mode=mode),
            df.BalancedData,
            random=True,
        )
        for mode in ("over", "under")
    ],
    *[
        Example(
            f"ClassWeightData {source.__name__} {number}",
            lambda source=source, options=options: df.ClassWeightData(
                source(), label=lambda dp: dp[0] > 4, **options
            ),
            df.ClassWeightData,
            random=True,
        )
        for number, (source, options) in enumerate(
            [
                (listed, {}),
                (filtered, {}),
                (iterated, {"labels": [False] * 5 + [True] * 2}),
                (dropping, {"class_weight": {0: 1, 1: 2.5}}),
                (in_order, {"class_weight": "resample"}),
                (listed, {"class_weight": None}),
            ]
        )
    ],
    Example(
        "ClassWeightData arrays",
        lambda: df.ClassWeightData(arrays(shuffle=True), label="y"),
        random=True,
    ),
]

EXAMPLES = [*SOURCES, *STAGES]

"""Pipelines of one to six stages, drawn at random, against plain lists.

The reference is a list of cells for each epoch: a datapoint, or the error that comes in its place.
Every stage is a short function of such lists.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.dataflow.laws import frozen, through_json
from towerpack import dataflow as df
from towerpack.core import tree
from towerpack.dataflow.parallel.stage import ProcessStage
from towerpack.dataflow.statistics import walk

Reference = Callable[[int], list[Any]]  # the cells of an epoch


class Broken(Exception):
    """What the failing functions raise."""


class Cell(Exception):
    """In a reference: the error that comes instead of a datapoint."""


KINDS: dict[str, Callable[[int], Any]] = {
    "number": lambda i: i,
    "array": lambda i: np.full(3, i, np.float32),
    "numbers": lambda i: [i, i / 4],
    "pair": lambda i: [np.full((3, 5), i, np.uint8), i],
    "large": lambda i: [np.full((50, 40), i), np.int64(i)],
    "dict": lambda i: {"x": np.array([i, i], ">i4"), "y": i},
    "tuple": lambda i: (i, f"text {i}"),
    "nested": lambda i: [{"a": np.full(2, i, np.float16)}, (i, [np.float32(i), True])],
    "bytes": lambda i: [i, bytes([i % 7 + 1] * 5), np.bool_(i % 2)],
    "bfloat16": lambda i: [i, np.full(4, i, ml_dtypes.bfloat16)],
    "fortran": lambda i: [np.asfortranarray(np.full((2, 3), i, np.complex64))],
    "nothing in it": lambda i: [i, np.zeros((0, 4))],
    "ragged": lambda i: [np.full(1 + i % 3, i), i],
    "one odd dtype": lambda i: [np.full(2, i, np.float64 if i == 5 else np.float32)],
    "strings": lambda i: [np.array([f"{i}", "ab"]), i],
    "dates": lambda i: [i, np.datetime64(i, "s")],
    "object": lambda i: [i, frozenset([i])],
}


def number(datapoint: Any) -> int:
    """The number of a datapoint, or of the first one in a batch."""
    leaf = datapoint
    while True:
        if isinstance(leaf, dict):
            leaf = next(iter(leaf.values()))
        elif isinstance(leaf, list | tuple):
            leaf = leaf[0]
        else:
            return int(np.real(np.ravel(np.asarray(leaf))[0]).astype(float))


class Generated(df.DataFlow):
    def __init__(self, rows):
        self.stored = rows

    def __iter__(self):
        yield from self.stored


class GeneratedWithLength(Generated):
    def __iter__(self):
        yield from self.stored

    def __len__(self):
        return len(self.stored)


class Indexed(df.DataFlow):
    def __init__(self, rows):
        self.stored = rows

    def __len__(self):
        return len(self.stored)

    def rows(self, indices, epoch):
        return [self.stored[index] for index in indices]


SOURCES: dict[str, Callable[[list[Any]], Any]] = {
    "list": lambda rows: df.DataFromList(rows, shuffle=False),
    "shuffled list": lambda rows: df.DataFromList(rows, shuffle=True, seed=len(rows)),
    "plain list": lambda rows: df.as_flow(rows),
    "generator function": lambda rows: df.DataFromGenerator(lambda: iter(rows)),
    "iterable": lambda rows: df.DataFromIterable(dict(enumerate(rows)).values()),
    "generator class": Generated,
    "generator class with a length": GeneratedWithLength,
    "indexed class": Indexed,
}


@dataclass
class Pipeline:
    flow: df.DataFlow
    reference: Reference
    names: list[str]
    traits: set[str] = field(default_factory=set)

    def then(self, name: str, flow: df.DataFlow, reference: Reference, *traits: str) -> Pipeline:
        return Pipeline(flow, reference, [*self.names, name], self.traits | set(traits))


def each(cells: Reference, function: Callable[[Any], Any]) -> Reference:
    """A function of every datapoint; None drops it."""

    def cell(value: Any) -> Any:
        if isinstance(value, Cell):
            return value
        try:
            return function(value)
        except Exception as error:  # noqa: BLE001 (a cell like any other)
            return Cell(type(error))

    return lambda epoch: [x for x in map(cell, cells(epoch)) if x is not None]


def stacked(rows: list[Any]) -> Any:
    """One batch by plain numpy; an error where it would not be exact."""
    if any(isinstance(row, Cell) for row in rows):
        return next(row for row in rows if isinstance(row, Cell))
    flat = [tree.flatten(row) for row in rows]
    if any(spec != flat[0][1] for _, spec in flat):
        return Cell(df.BatchError)
    columns = []
    for values in zip(*[leaves for leaves, _ in flat], strict=True):
        kinds = {type(value) for value in values}
        small = {int: np.int32, float: np.float32}
        if isinstance(values[0], frozenset):
            return Cell(df.BatchError)
        if kinds <= set(small):
            dtype = np.float32 if float in kinds else np.int32
            columns.append(np.array(values, dtype))
            continue
        arrays = [np.asarray(value) for value in values]
        text = arrays[0].dtype.kind in "SU"
        if len({(a.shape, None if text else a.dtype) for a in arrays}) > 1:
            return Cell(df.BatchError)
        columns.append(np.stack(arrays).astype(max(a.dtype for a in arrays), copy=False))
    return tree.unflatten(flat[0][1], columns)


def batched(cells: list[Any], size: int, remainder: bool, stack: Callable[..., Any]) -> list[Any]:
    groups = [cells[i : i + size] for i in range(0, len(cells), size)]
    return [stack(group) for group in groups if remainder or len(group) == size]


def listed(rows: list[Any]) -> Any:
    """One batch as lists of components."""
    if any(isinstance(row, Cell) for row in rows):
        return next(row for row in rows if isinstance(row, Cell))
    first = rows[0]
    shapes = {(type(row), len(row) if isinstance(row, list | tuple) else 0) for row in rows}
    if len(shapes) > 1:
        return Cell(df.BatchError)
    if isinstance(first, dict):
        return {key: [row[key] for row in rows] for key in first}
    if isinstance(first, list | tuple):
        return type(first)([list(column) for column in zip(*rows, strict=True)])
    return rows


def grouped(cells: list[Any], size: int, remainder: bool) -> list[Any]:
    """Batches of equal shapes of the first component, each when it is full."""
    groups: dict[Any, list[Any]] = {}
    batches = []
    for cell in cells:
        if isinstance(cell, Cell):
            return [*batches, cell]
        shape = np.shape(cell[0])
        groups.setdefault(shape, []).append(cell)
        if len(groups[shape]) == size:
            batches.append(stacked(groups.pop(shape)))
    return [*batches, *(stacked(group) for group in groups.values() if remainder)]


def skipping(cells: Reference, on_error: str) -> Reference:
    if on_error == "raise":
        return cells
    return lambda epoch: [cell for cell in cells(epoch) if not isinstance(cell, Cell)]


def chained(cells: Reference, start: int, size: int) -> list[Any]:
    epochs = itertools.chain.from_iterable(cells(epoch) for epoch in itertools.count())
    return list(itertools.islice(epochs, start, start + size))


def fails_at(where: int) -> Callable[[Any], Any]:
    def fails(datapoint: Any) -> Any:
        if number(datapoint) == where:
            raise Broken(where)
        return datapoint

    return fails


def keeps(divisor: int) -> Callable[[Any], bool]:
    return lambda datapoint: number(datapoint) % divisor != 1


def drops(divisor: int) -> Callable[[Any], Any]:
    return lambda datapoint: datapoint if number(datapoint) % divisor != 1 else None


def wrap(datapoint: Any) -> Any:
    return [datapoint, 7]


def add_stage(pipe: Pipeline, draw: random.Random, processes: bool) -> Pipeline:
    """One more stage, in the flow and in the reference."""
    flow, cells = pipe.flow, pipe.reference
    workers = draw.choice([0, 1, 2]) if processes else 0
    threads = draw.choice([0, 1, 3])
    size, where, divisor = draw.randint(1, 5), draw.randint(0, 12), draw.randint(2, 4)
    remainder = draw.random() < 0.5
    kind = draw.choice(STAGES)
    if kind in ("join", "concat") and "shuffled" in pipe.traits:
        return pipe  # its order is another one in a branch
    function, traits = draw.choice(
        [
            (wrap, ()),
            (lambda dp: dp, ()),
            (fails_at(where), ("fails",)),
            (drops(divisor), ("drops",)),
        ]
    )
    name = f"{kind}({size}, {where}, {divisor}, {remainder}, {traits}, {workers}, {threads})"
    mapped = each(cells, function)
    sound = not any(isinstance(cell, Cell) for epoch in (0, 1) for cell in cells(epoch))
    on_error = "skip" if sound and remainder else "raise"
    if kind == "map":
        return pipe.then(name, df.MapData(flow, function), mapped, *traits)
    if kind == "thread map":
        made = df.MultiThreadMapData(flow, threads, function, buffer_size=size, on_error=on_error)
        return pipe.then(name, made, skipping(mapped, on_error), *traits, "drops")
    if kind == "process map":
        made = df.MultiProcessMapData(flow, workers, function, buffer_size=size, on_error=on_error)
        return pipe.then(name, made, skipping(mapped, on_error), *traits, "drops")
    if kind == "process map and batch":
        if "drops" in traits:
            return pipe
        made = df.MultiProcessMapAndBatchData(flow, workers, function, size, remainder=remainder)
        return pipe.then(
            name,
            made,
            lambda epoch: batched(mapped(epoch), size, remainder, stacked),
            *(*traits, "reads less" if not remainder else "", "by index"),
        )
    if kind == "filter":
        kept = each(cells, drops(divisor))
        return pipe.then(name, df.FilterData(flow, keeps(divisor)), kept, "filtered")
    if kind == "batch":
        made = df.BatchData(flow, size, remainder)
        return pipe.then(
            name,
            made,
            lambda epoch: batched(cells(epoch), size, remainder, stacked),
            "" if remainder else "reads less",
        )
    if kind == "batch lists":
        made = df.BatchData(flow, size, remainder=True, use_list=True)
        return pipe.then(name, made, lambda epoch: batched(cells(epoch), size, True, listed))
    if kind == "batch by shape":
        both = [*cells(0), *cells(1)]
        rows = [cell for cell in both if not isinstance(cell, Cell)]
        if not all(isinstance(row, list | tuple) for row in rows):
            return pipe
        if any(tree.is_container(row[0]) for row in rows):
            return pipe
        made = df.BatchDataByShape(flow, size, 0, remainder=remainder)
        return pipe.then(name, made, lambda epoch: grouped(cells(epoch), size, remainder))
    if kind == "repeat":
        return pipe.then(
            name,
            df.RepeatedData(flow, 2),
            lambda epoch: [*cells(2 * epoch), *cells(2 * epoch + 1)],
        )
    if kind == "repeat points":
        made = df.RepeatedDataPoint(flow, 2)
        return pipe.then(name, made, lambda e: [x for x in cells(e) for _ in range(2)])
    if kind == "take":
        return pipe.then(name, df.TakeData(flow, size), lambda epoch: cells(epoch)[:size])
    if kind == "shard":
        if {"drops", "filtered"} & pipe.traits:
            return pipe  # it counts indices
        made = df.ShardData(flow, 2, 1)
        return pipe.then(name, made, lambda epoch: cells(epoch)[1::2], "reads less")
    if kind == "fixed size":
        if not cells(0) or any(isinstance(cell, Cell) for cell in cells(0)):
            return pipe
        made = df.FixedSizeData(flow, size)
        return pipe.then(name, made, lambda epoch: chained(cells, epoch * size, size))
    if kind == "cache":
        return pipe.then(name, df.CacheData(flow), lambda epoch: cells(0))
    if kind == "concat":
        return pipe.then(name, df.ConcatData([flow, [1, 2]]), lambda epoch: [*cells(epoch), 1, 2])
    if kind == "join":
        if not all(isinstance(cell, list | Cell) for cell in cells(0)):
            return pipe
        made = df.JoinData([flow, [["joined"]] * 10_000], paired=False)
        return pipe.then(name, made, each(cells, lambda dp: [*dp, "joined"]))
    if kind == "thread runner":
        exact = threads if flow.random_access else min(1, threads)
        return pipe.then(name, df.MultiThreadRunner(lambda: flow, 2, exact), cells, "by index")
    assert kind == "process runner"
    exact = workers if flow.random_access else min(1, workers)
    return pipe.then(name, df.MultiProcessRunner(flow, 3, exact), cells, "by index")


STAGES = [
    *("map", "map", "thread map", "process map", "process map and batch", "filter", "batch"),
    *(
        "batch",
        "batch lists",
        "batch by shape",
        "repeat",
        "repeat points",
        "take",
        "shard",
        "fixed size",
        "cache",
    ),
    *("concat", "join", "thread runner", "process runner"),
]


def drawn(seed: int) -> Pipeline | None:
    """A pipeline; None where a stage refuses its arguments or its input."""
    draw = random.Random(seed)
    kind, source = draw.choice(list(KINDS)), draw.choice(list(SOURCES))
    rows = [KINDS[kind](i) for i in range(draw.choice([0, 1, 7, 13, 40]))]
    flow = SOURCES[source](rows)
    shuffled = source == "shuffled list"
    pipe = Pipeline(
        flow,
        lambda epoch: list(SOURCES[source](rows).iterate(epoch)) if shuffled else rows,
        [f"{len(rows)} of {kind} in a {source}"],
        {"shuffled"} if shuffled else set(),
    )
    processes = draw.random() < 0.3
    for _ in range(draw.randint(1, 6)):
        try:
            pipe = add_stage(pipe, draw, processes and not has_processes(pipe.flow))
        except (ValueError, TypeError) as refusal:
            assert any(word in str(refusal) for word in ("expected", "larger", "needs")), pipe.names
            return None
    return pipe


def has_processes(flow: df.DataFlow) -> bool:
    return any(isinstance(stage, ProcessStage) and stage.num_proc for stage in walk(flow))


def check(seed: int) -> None:
    pipe = drawn(seed)
    if pipe is None:
        return
    for epoch in (0, 1):
        cells = pipe.reference(epoch)
        ends = next((i for i, cell in enumerate(cells) if isinstance(cell, Cell)), len(cells))
        expected = [frozen(cell) for cell in cells[:ends]]
        found: list[Any] = []
        states = []
        error: BaseException | None = None
        with pipe.flow.iterate(epoch) as iterator:
            try:
                states.append(through_json(iterator.state()))
                for datapoint in iterator:
                    found.append(frozen(datapoint))
                    states.append(through_json(iterator.state()))
            except Exception as raised:  # noqa: BLE001 (compared)
                error = raised
        told = f"seed {seed}, epoch {epoch}: {' > '.join(pipe.names)}: {error!r}"
        if isinstance(error, df.DroppedDatapoint) and "drops" in pipe.traits:
            assert found == expected[: len(found)], told  # refused by index
            continue
        if isinstance(error, ValueError) and "gave none" in str(error):
            assert found == expected[: len(found)], told  # FixedSizeData refuses an empty epoch
            continue
        if isinstance(error, Broken | df.BatchError) and "reads less" in pipe.traits:
            assert found == expected[: len(found)], told  # of a datapoint that is not in a batch
            continue
        assert found == expected, told
        assert (error is None) == (ends == len(cells)), told
        if error is not None:
            assert isinstance(error, cells[ends].args[0]), told
            continue
        place = random.Random(seed).randrange(len(states))
        with pipe.flow.iterate(epoch) as restored:
            restored.restore(states[place])
            assert [frozen(dp) for dp in restored] == expected[place:], f"{told}, from {place}"


@pytest.mark.parametrize("part", range(5))
def test_random_pipelines_equal_plain_lists(part):
    for seed in range(part * 30, part * 30 + 30):
        check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(100))
def test_thousands_of_random_pipelines_equal_plain_lists(part):
    for seed in range(1000 + part * 100, 1100 + part * 100):
        check(seed)

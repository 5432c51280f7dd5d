"""Parallel flows for the laws: over an input with random access, an iterated and a dropping one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

import tests.dataflow.examples
from tests.dataflow.examples import dropping, in_order, iterated, listed
from tests.dataflow.laws import Example
from towerpack import dataflow as df
from towerpack.dataflow import DataFlow

# By value: a worker that imported the tests would import pytest, many times a second.
cloudpickle.register_pickle_by_value(tests.dataflow.examples)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZE = 5  # every position of these is restored with workers of its own: small is quick


def noisy(dp: Any, rng: Any) -> Any:
    return [*dp, int(rng.integers(1000))]


def even_only(dp: Any) -> Any:
    return None if dp[0] % 2 else dp


def component(value: Any) -> Any:
    import numpy as np

    return np.full(2, value)


Make = Callable[..., DataFlow]
Entry = tuple[str, Make, bool]  # its name, how to make it for a number of workers, random


def runner(make: Callable[[], DataFlow], prefetch: int) -> Make:
    return lambda n, **options: df.MultiProcessRunner(make(), prefetch, n, **options)


def mapped(make: Callable[[], DataFlow], func: Any, **fixed: Any) -> Make:
    return lambda n, **options: df.MultiProcessMapData(make(), n, func, **fixed, **options)


def batched(make: Callable[[], DataFlow], func: Any, remainder: bool) -> Make:
    return lambda n, **options: df.MultiProcessMapAndBatchData(
        make(), n, func, 2, remainder=remainder, **options
    )


def few() -> DataFlow:
    return listed(SIZE)


def few_in_order() -> DataFlow:
    return in_order(SIZE)


def few_iterated() -> DataFlow:
    return iterated(SIZE)


def few_batches() -> DataFlow:
    return df.BatchData(df.MapData(few(), noisy), 2, remainder=True)


def shared_array(n: int, **options: Any) -> DataFlow:
    return df.MultiProcessMapDataComponentSharedArray(few(), n, component, (2,), "int64", **options)


PAIRS: list[tuple[Entry, Callable[[], DataFlow]]] = [
    (("runner", runner(few, 2), True), few),
    (("runner of batches", runner(few_batches, 4), True), few_batches),
    (
        ("runner of a stage that drops", runner(lambda: dropping(SIZE), 2), True),
        lambda: dropping(SIZE),
    ),
    (("map", mapped(few, noisy), True), lambda: df.MapData(few(), noisy)),
    (
        ("map that drops", mapped(few_in_order, even_only), False),
        lambda: df.MapData(few_in_order(), even_only),
    ),
    (
        ("map of an iterated flow", mapped(few_iterated, noisy), True),
        lambda: df.MapData(few_iterated(), noisy),
    ),
    (
        (
            "map of an iterated flow that drops",
            mapped(few_iterated, even_only, buffer_size=2),
            True,
        ),
        lambda: df.MapData(few_iterated(), even_only),
    ),
    (("map and batch", batched(few, noisy, True), True), few_batches),
    (
        ("map and batch of an iterated flow", batched(few_iterated, noisy, False), True),
        lambda: df.BatchData(df.MapData(few_iterated(), noisy), 2),
    ),
    (
        ("shared array", shared_array, True),
        lambda: df.MapDataComponent(few(), component),
    ),
]
"""Flows whose stream is the same for any number of workers, and the plain ones they equal."""

STREAMS: list[Entry] = [entry for entry, _ in PAIRS]

COPIES: list[Entry] = [
    ("copies", lambda n, **o: df.MultiProcessRunner(iterated(SIZE), 2, n, **o), True),
    (
        "copies without a length",
        lambda n, **o: df.MultiProcessRunnerZMQ(
            df.DataFromGenerator(lambda: iter([[i] for i in range(SIZE)])), n, **o
        ),
        False,
    ),
]
"""Streams that depend on the number of workers."""

THREADS: list[Entry] = [
    ("threads", lambda n: df.MultiThreadRunner(lambda: listed(SIZE), 2, n), True),
    ("threads of copies", lambda n: df.MultiThreadRunner(lambda: iterated(SIZE), 2, n), True),
    ("thread map", lambda n: df.MultiThreadMapData(listed(SIZE), n, noisy), True),
    (
        "thread map of an iterated flow",
        lambda n: df.MultiThreadMapData(iterated(SIZE), n, even_only),
        True,
    ),
]


def example(entry: Entry, workers: int, **options: Any) -> Example:
    name, make, random = entry
    title = ", ".join([name, f"{workers} workers", *map(str, options.values())])
    return Example(title, lambda: make(workers, **options), random=random)


def named(parameter: Any) -> str:
    """The id of a test's parameter: an entry of these tables, or a law."""
    if isinstance(parameter, tuple):
        return str(parameter[0]).replace(" ", "_")
    return str(getattr(parameter, "__name__", parameter)).removeprefix("law_")

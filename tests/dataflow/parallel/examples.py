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
WORKERS = ("num_proc", "num_thread")

STREAMS: list[tuple[str, Make, bool]] = [
    # name, how to make it for a number of workers, random
    ("runner", lambda n, **o: df.MultiProcessRunner(listed(SIZE), 2, n, **o), True),
    (
        "runner of batches",
        lambda n, **o: df.MultiProcessRunner(
            df.BatchData(df.MapData(listed(SIZE), noisy), 2, remainder=True), 4, n, **o
        ),
        True,
    ),
    (
        "runner of a stage that drops",
        lambda n, **o: df.MultiProcessRunner(dropping(SIZE), 2, n, **o),
        True,
    ),
    ("map", lambda n, **o: df.MultiProcessMapData(listed(SIZE), n, noisy, **o), True),
    (
        "map that drops",
        lambda n, **o: df.MultiProcessMapData(in_order(SIZE), n, even_only, **o),
        False,
    ),
    (
        "map of an iterated flow",
        lambda n, **o: df.MultiProcessMapData(iterated(SIZE), n, noisy, **o),
        True,
    ),
    (
        "map of an iterated flow that drops",
        lambda n, **o: df.MultiProcessMapData(iterated(SIZE), n, even_only, buffer_size=2, **o),
        True,
    ),
    (
        "map and batch",
        lambda n, **o: df.MultiProcessMapAndBatchData(
            listed(SIZE), n, noisy, 2, remainder=True, **o
        ),
        True,
    ),
    (
        "map and batch of an iterated flow",
        lambda n, **o: df.MultiProcessMapAndBatchData(iterated(SIZE), n, noisy, 2, **o),
        True,
    ),
    (
        "shared array",
        lambda n, **o: df.MultiProcessMapDataComponentSharedArray(
            listed(SIZE), n, component, (2,), "int64", **o
        ),
        True,
    ),
]
"""Streams that are the same for any number of workers and every start method."""

COPIES: list[tuple[str, Make, bool]] = [
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

THREADS: list[tuple[str, Make, bool]] = [
    ("threads", lambda n: df.MultiThreadRunner(lambda: listed(SIZE), 2, n), True),
    ("threads of copies", lambda n: df.MultiThreadRunner(lambda: iterated(SIZE), 2, n), True),
    ("thread map", lambda n: df.MultiThreadMapData(listed(SIZE), n, noisy), True),
    (
        "thread map of an iterated flow",
        lambda n: df.MultiThreadMapData(iterated(SIZE), n, even_only),
        True,
    ),
]


def example(entry: tuple[str, Make, bool], workers: int, **options: Any) -> Example:
    name, make, random = entry
    title = ", ".join([name, f"{workers} workers", *map(str, options.values())])
    return Example(title, lambda: make(workers, **options), random=random)


def named(parameter: Any) -> str:
    """The id of a test's parameter: an entry of these tables, or a law."""
    if isinstance(parameter, tuple):
        return str(parameter[0]).replace(" ", "_")
    return str(getattr(parameter, "__name__", parameter)).removeprefix("law_")

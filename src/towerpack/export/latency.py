"""How long one call takes."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from towerpack.export.compare import Runner

WARM_UP = 3  # calls: the first ones allocate, and some runtimes compile
LONGEST = 0.5  # seconds of measuring
MOST_CALLS = 200


def latency_ms(run: Runner, inputs: dict[str, Any]) -> float:
    """The median time of a call in milliseconds."""
    for _ in range(WARM_UP):
        run(inputs)
    times: list[float] = []
    while len(times) < MOST_CALLS and sum(times) < LONGEST:
        start = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def batch_of(inputs: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    """The inputs with this batch size: rows again and again."""
    return {name: np.resize(array, (size, *array.shape[1:])) for name, array in inputs.items()}

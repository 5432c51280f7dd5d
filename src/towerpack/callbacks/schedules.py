"""Schedules as functions of the epochs finished, for `HyperParamSetterWithFunc`.

Each returns a function of (epochs finished, value now), which ignores the value. Epochs may be
fractions: `PeriodicTrigger(HyperParamSetterWithFunc(...), every_k_steps=100)` follows smoothly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Schedule = Callable[[float, Any], float]


def warmup(
    peak: float, epochs: float, start: float = 0.0, then: Schedule | None = None
) -> Schedule:
    """Rises from `start` to `peak` in a straight line, then stays, or follows `then`.

    `then` counts from the end of the rise.

    >>> rate = warmup(0.1, epochs=5)
    >>> rate(0, None), rate(2.5, None), rate(80, None)
    (0.0, 0.05, 0.1)
    """
    _check_positive(epochs=epochs)

    def value(finished: float, now: Any = None) -> float:
        if finished < epochs:
            return start + (peak - start) * finished / epochs
        return peak if then is None else then(finished - epochs, now)

    return value


def cosine(peak: float, total: float, final: float = 0.0, warmup: float = 0.0) -> Schedule:
    """Falls from `peak` to `final` in half a wave by epoch `total`; `warmup` epochs rise to it.

    >>> rate = cosine(1.0, total=10)
    >>> rate(0, None), round(rate(5, None), 6), round(rate(10, None), 6), round(rate(12, None), 6)
    (1.0, 0.5, 0.0, 0.0)
    """
    _check_positive(total=total)
    if not 0 <= warmup < total:
        raise ValueError(f"expected 0 <= warmup < total, received {warmup} and {total}")

    def value(finished: float, now: Any = None) -> float:
        if finished < warmup:
            return peak * finished / warmup
        share = min(1.0, (finished - warmup) / (total - warmup))
        return final + (peak - final) * (1 + math.cos(math.pi * share)) / 2

    return value


def one_cycle(
    peak: float, total: float, start: float | None = None, final: float = 0.0, rise: float = 0.3
) -> Schedule:
    """Rises from `start` over a share `rise` of the epochs, then falls to `final`, both in waves.

    `start` is a 25th of `peak` by default.

    >>> rate = one_cycle(1.0, total=10)
    >>> round(rate(0, None), 6), rate(3, None), round(rate(10, None), 6)
    (0.04, 1.0, 0.0)
    """
    _check_positive(total=total)
    if not 0 < rise < 1:
        raise ValueError(f"expected 0 < rise < 1, received {rise}")
    first = peak / 25 if start is None else start
    top = rise * total

    def value(finished: float, now: Any = None) -> float:
        if finished <= top:
            share = finished / top
            return peak + (first - peak) * (1 + math.cos(math.pi * share)) / 2
        share = min(1.0, (finished - top) / (total - top))
        return final + (peak - final) * (1 + math.cos(math.pi * share)) / 2

    return value


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if number <= 0:
            raise ValueError(f"expected {name} > 0, received {number}")

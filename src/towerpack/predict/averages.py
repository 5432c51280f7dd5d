"""Moving averages of weights, as checkpoints keep them, in the place of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.callbacks.ema import SUFFIX
from towerpack.checkpoint import load_checkpoint_vars

EMA_SUFFIX = f"/{SUFFIX}"


def with_averages(session_init: Any) -> dict[str, np.ndarray]:
    """The values of a checkpoint, where every variable that has an average has its value.

    A checkpoint without any average is an error: the plain weights would pass for averaged ones.

    >>> with_averages({"w": 1, "w/ExponentialMovingAverage": 2, "b": 3})
    {'b': 3, 'w': 2}
    """
    values = _values(session_init)
    averages = {
        name.removesuffix(EMA_SUFFIX): value
        for name, value in values.items()
        if name.endswith(EMA_SUFFIX)
    }
    if not averages:
        raise ValueError(
            f"expected moving averages (variables named '<name>{EMA_SUFFIX}'), but there is none "
            f"among the {len(values)} values; was the model trained with them?"
        )
    plain = {name: value for name, value in values.items() if not name.endswith(EMA_SUFFIX)}
    return dict(sorted({**plain, **averages}.items()))


def _values(session_init: Any) -> dict[str, Any]:
    if isinstance(session_init, str | Path):
        return load_checkpoint_vars(session_init)
    if not isinstance(session_init, Mapping):
        raise TypeError(
            f"expected a checkpoint's path or a dict of arrays for ema=True, received "
            f"{session_init!r}"
        )
    return dict(session_init)

"""What the model is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.core import logger


class ModelSummary(Callback):
    """Logs a table of the variables before training: names, shapes, numbers of parameters.

    Frozen ones are listed with the reason. `limit` shows only the largest; other variables, such as
    those of optimizers, are counted and not listed.
    """

    def __init__(self, limit: int | None = None):
        if limit is not None and limit < 1:
            raise ValueError(f"expected a limit of at least 1, received {limit}")
        self.limit = limit

    def _before_train(self) -> None:
        logger.info("the model:\n%s", self.table())

    def table(self) -> str:
        """One line for each variable that is trained or frozen, and the sums."""
        store = self.trainer.store
        trainable, frozen = store.trainable(), store.frozen()
        listed = {n: v for n, v in store.variables.items() if n in trainable or n in frozen}
        rows = [
            (name, _shape(v), _size(v), f"{v.dtype.name}{_note(frozen.get(name))}")
            for name, v in listed.items()
        ]
        if self.limit is not None and len(rows) > self.limit:
            rows = sorted(rows, key=lambda row: -row[2])[: self.limit]
        widths = [max([5, *(len(str(row[column])) for row in rows)]) for column in (0, 1)]
        lines = [f"{'name':<{widths[0]}}  {'shape':<{widths[1]}}  {'parameters':>12}  type"]
        for name, shape, size, dtype in rows:
            lines.append(f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {size:>12,}  {dtype}")
        if len(rows) < len(listed):
            lines.append(f"... and {len(listed) - len(rows)} smaller ones")
        others = [v for name, v in store.variables.items() if name not in listed]
        lines.append(f"{len(trainable)} trainable variables: {_total(trainable.values())}")
        if frozen:
            lines.append(f"{len(frozen)} frozen variables: {_total(store[n] for n in frozen)}")
        lines.append(f"{len(others)} others (of optimizers, say): {_total(others)}")
        return "\n".join(lines)


def _note(why: str | None) -> str:
    return f", frozen: {why}" if why else ""


def _shape(variable: Any) -> str:
    return "x".join(str(size) for size in variable.shape) or "scalar"


def _size(variable: Any) -> int:
    return math.prod(variable.shape)


def _total(variables: Iterable[Any]) -> str:
    known = list(variables)
    memory = sum(_size(variable) * variable.dtype.size for variable in known)
    return f"{sum(map(_size, known)):,} numbers, {memory / 1024**2:.2f} MB"

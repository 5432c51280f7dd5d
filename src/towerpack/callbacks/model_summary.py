"""What the model is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.core import logger


class ModelSummary(Callback):
    """Logs a table of the variables before training: names, shapes, numbers of parameters.

    `limit` shows only the largest; optimizers' own variables are counted, not listed.
    """

    def __init__(self, limit: int | None = None):
        if limit is not None and limit < 1:
            raise ValueError(f"expected a limit of at least 1, received {limit}")
        self.limit = limit

    def _before_train(self) -> None:
        logger.info("the model:\n%s", self.table())

    def table(self) -> str:
        """One line for each trainable variable, and the sums."""
        trainable = self.trainer.store.trainable()
        rows = [(name, _shape(v), _size(v), v.dtype.name) for name, v in trainable.items()]
        if self.limit is not None and len(rows) > self.limit:
            rows = sorted(rows, key=lambda row: -row[2])[: self.limit]
        widths = [max([5, *(len(str(row[column])) for row in rows)]) for column in (0, 1)]
        lines = [f"{'name':<{widths[0]}}  {'shape':<{widths[1]}}  {'parameters':>12}  type"]
        for name, shape, size, dtype in rows:
            lines.append(f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {size:>12,}  {dtype}")
        if len(rows) < len(trainable):
            lines.append(f"... and {len(trainable) - len(rows)} smaller ones")
        others = [v for v in self.trainer.store.variables.values() if not v.trainable]
        lines.append(f"{len(trainable)} trainable variables: {_total(trainable.values())}")
        lines.append(f"{len(others)} others (of optimizers, say): {_total(others)}")
        return "\n".join(lines)


def _shape(variable: Any) -> str:
    return "x".join(str(size) for size in variable.shape) or "scalar"


def _size(variable: Any) -> int:
    return math.prod(variable.shape)


def _total(variables: Iterable[Any]) -> str:
    known = list(variables)
    memory = sum(_size(variable) * variable.dtype.size for variable in known)
    return f"{sum(map(_size, known)):,} numbers, {memory / 1024**2:.2f} MB"

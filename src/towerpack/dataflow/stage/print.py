"""What datapoints look like, in the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.stage.base import ApplyIterator, Stage

MAX_TEXT = 60  # characters of a string that are shown


class PrintData(Stage):
    """Logs type, shape and range of the first `num` datapoints, and passes all on unchanged.

    It can stand anywhere in a pipeline: it changes neither the stream nor the random numbers of the
    stages around it, and keeps random access. In workers, each one logs its own first datapoints.
    `max_depth` and `max_list` limit how much of a nested datapoint is shown.

    >>> flow = PrintData([[np.zeros(3), "a"]])
    >>> print(flow.describe([np.zeros(3), "a"]))
    list of 2
      [0] float64 of shape (3,) in [0, 0]
      [1] str 'a'
    """

    keeps_rows = True
    transparent = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num: int = 1,
        name: str | None = None,
        max_depth: int = 3,
        max_list: int = 3,
    ):
        super().__init__(ds)
        self.num, self.name = num, name
        self.max_depth, self.max_list = max_depth, max_list
        self._shown = 0

    def describe(self, datapoint: Any) -> str:
        return describe(datapoint, self.max_depth, self.max_list)

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        for datapoint in rows:
            if self._shown >= self.num:
                break
            if datapoint is not None:
                of = f"{self.name or self.ds.label()}, datapoint {self._shown}: "
                self._shown += 1
                logger.info("%s", of + self.describe(datapoint))
        return rows

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        if self._shown < self.num:  # a batch has no single datapoints: read some to show
            self.rows(indices[: self.num - self._shown], epoch)
        return self.ds.read_batch(indices, epoch)

    def iterator(self, epoch: Epoch) -> FlowIterator:
        return ApplyIterator(self, epoch, key=None)


def describe(value: Any, max_depth: int = 3, max_list: int = 3, indent: int = 0) -> str:
    """A datapoint in words, one line for each component."""
    if isinstance(value, dict):
        items = [(repr(key), child) for key, child in value.items()]
        head = f"{type(value).__name__} of {len(value)}"
    elif isinstance(value, list | tuple):
        items = [(str(position), child) for position, child in enumerate(value)]
        head = f"{type(value).__name__} of {len(value)}"
    else:
        return _leaf(value)
    if max_depth == 0:
        return f"{head} ..."
    pad = "  " * (indent + 1)
    shown = items if indent == 0 else items[:max_list]
    lines = [
        f"{pad}[{key}] {describe(child, max_depth - 1, max_list, indent + 1)}"
        for key, child in shown
    ]
    if len(items) > len(shown):
        lines.append(f"{pad}... and {len(items) - len(shown)} more")
    return "\n".join([head, *lines])


def _leaf(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.shape:
        return f"{value.dtype} of shape {value.shape}{_range(value)}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value}"
    text = repr(value)
    size = f" of {len(value)}" if isinstance(value, str | bytes) and len(text) > MAX_TEXT else ""
    return f"{type(value).__name__}{size} {text[:MAX_TEXT]}{'...' if len(text) > MAX_TEXT else ''}"


def _range(array: np.ndarray) -> str:
    if not array.size or array.dtype.kind not in "biuf":
        return ""
    low, high = array.min(), array.max()
    return f" in [{low:.6g}, {high:.6g}]" if array.dtype.kind != "b" else f" in [{low}, {high}]"

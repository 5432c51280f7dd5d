"""What datapoints look like, in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.dataflow.base import DataFlow, FlowIterator, Pass, ProxyDataFlow, State

MAX_TEXT = 60  # characters of a string that are shown


class PrintData(ProxyDataFlow):
    """Logs type, shape and range of the first `num` datapoints, and passes all on unchanged.

    Put it anywhere into a pipeline: it changes neither the stream nor the random numbers of the
    stages around it, and random access is kept. In workers, each logs its own first ones.
    `max_depth` and `max_list` bound how much of a nested datapoint is shown.

    >>> flow = PrintData([[np.zeros(3), "a"]])
    >>> print(flow.describe([np.zeros(3), "a"]))
    list of 2
      [0] float64 of shape (3,) in [0, 0]
      [1] str 'a'
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num: int = 1,
        name: str | None = None,
        max_depth: int = 3,
        max_list: int = 3,
    ):
        super().__init__(ds)
        self.height = self.ds.height  # as if it were not there
        self.num, self.name = num, name
        self.max_depth, self.max_list = max_depth, max_list
        self._shown = 0

    def describe(self, datapoint: Any) -> str:
        return describe(datapoint, self.max_depth, self.max_list)

    def show(self, datapoint: Any) -> None:
        if self._shown < self.num and datapoint is not None:
            of = f"{self.name or self.ds.label()}, datapoint {self._shown}: "
            self._shown += 1
            logger.info("%s", of + self.describe(datapoint))

    def get(self, index: int, pass_: Pass) -> Any:
        datapoint = self.ds.get(index, pass_)
        self.show(datapoint)
        return datapoint

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        rows = self.ds.get_rows(indices, pass_)
        for row in rows[: self.num - self._shown]:
            self.show(row)
        return rows

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        if self._shown < self.num:  # a whole batch has no single datapoints: read some to show
            self.get_rows(indices[: self.num - self._shown], pass_)
        return self.ds.gather(indices, pass_)

    def iterator(self, pass_: Pass) -> FlowIterator:
        return _Shown(self, pass_)


class _Shown(FlowIterator):
    def __init__(self, flow: PrintData, pass_: Pass):
        self._flow, self._input = flow, flow.ds.iterator(pass_)

    def __next__(self) -> Any:
        datapoint = next(self._input)
        self._flow.show(datapoint)
        return datapoint

    def state(self) -> State:
        return self._input.state()

    def restore(self, state: State) -> None:
        self._input.restore(state)

    def close(self) -> None:
        self._input.close()


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

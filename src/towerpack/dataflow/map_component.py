"""One component of every datapoint: a function applied to it, or some of them picked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, FlowIterator, Pass, Stage, State
from towerpack.dataflow.blame import name_of, takes_rng
from towerpack.dataflow.iterators import IndexIterator
from towerpack.dataflow.map import MapData


class MapDataComponent(MapData):
    """Applies `func` to one component of every datapoint.

    As `MapData` in everything else: order, `rng`, None drops the datapoint. `index` is a position,
    or a key if datapoints are dicts. A tuple becomes a list.

    >>> list(MapDataComponent([[1, "a"], [2, "b"]], lambda x: x * 10, index=0))
    [[10, 'a'], [20, 'b']]
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        func: Callable[..., Any],
        index: int | str = 0,
        *,
        seed: int = 0,
    ):
        if not callable(func):
            raise TypeError(f"expected a function, received {func!r} ({type(func).__name__})")
        on_component = _OnComponentWithRng if takes_rng(func) else _OnComponent
        super().__init__(ds, on_component(func, index), seed=seed)
        self._name = f"{name_of(func)}, {index!r}"

    def label(self) -> str:
        return f"{type(self).__name__}({self._name})"


class _OnComponent:
    def __init__(self, func: Callable[..., Any], index: int | str):
        self.func, self.index = func, index

    def __call__(self, datapoint: Any) -> Any:
        return self._replace(datapoint)

    def _replace(self, datapoint: Any, **kwargs: Any) -> Any:
        if isinstance(datapoint, tuple):
            datapoint = list(datapoint)
        result = self.func(component(datapoint, self.index), **kwargs)
        if result is None:
            return None
        datapoint[self.index] = result  # a shallow copy by now: MapData made it
        return datapoint


class _OnComponentWithRng(_OnComponent):
    def __call__(self, datapoint: Any, rng: Any = None) -> Any:
        return self._replace(datapoint, rng=rng)


class SelectComponent(Stage):
    """Picks components of every datapoint, in the order given.

    Random access and whole batches are kept. For dicts, give keys: the result is a dict of them.

    >>> list(SelectComponent([["a", 1, 2.5]], [2, 0]))
    [[2.5, 'a']]
    """

    def __init__(self, ds: DataFlow | Iterable[Any], idxs: Sequence[int | str]):
        super().__init__(ds)
        self.idxs = list(idxs)

    def pick(self, datapoint: Any) -> Any:
        if isinstance(datapoint, dict):
            return {index: component(datapoint, index) for index in self.idxs}
        return [component(datapoint, index) for index in self.idxs]

    def get(self, index: int, pass_: Pass) -> Any:
        datapoint = self.ds.get(index, pass_)
        return None if datapoint is None else self.pick(datapoint)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        rows = self.ds.get_rows(indices, pass_)
        return [None if row is None else self.pick(row) for row in rows]

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        return self.pick(self.ds.gather(indices, pass_))

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _Picked(self, pass_)


class _Picked(FlowIterator):
    def __init__(self, flow: SelectComponent, pass_: Pass):
        self._pick, self._input = flow.pick, flow.ds.iterator(pass_)

    def __next__(self) -> Any:
        return self._pick(next(self._input))

    def state(self) -> State:
        return self._input.state()

    def restore(self, state: State) -> None:
        self._input.restore(state)

    def close(self) -> None:
        self._input.close()


def component(datapoint: Any, index: int | str) -> Any:
    """The component at a position or key, or an error that says what there is."""
    try:
        return datapoint[index]
    except (LookupError, TypeError) as error:
        if isinstance(datapoint, dict):
            there = f"keys {list(datapoint)}"
        elif isinstance(datapoint, list | tuple):
            there = f"{len(datapoint)} components"
        else:
            there = f"no components: it is a {type(datapoint).__name__}"
        raise LookupError(f"no component {index!r} in a datapoint that has {there}") from error

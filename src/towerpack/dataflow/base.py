"""What a flow is: an iterable of datapoints whose stream is a pure function of (seed, epoch).

Two kinds of flow, one protocol:

- A flow with **random access** says so (`random_access`) and implements `__len__` and `get`. It is
  iterated by index, so a position is one integer, restoring is instant, and workers need only be
  told indices.
- Any other flow implements `iterator`, or, as in old scripts, simply `__iter__` as a generator.

Nothing here holds a position or a generator of random numbers in the flow itself: those belong to
the iterator and to the `Pass` that it was made for.

**Dropped datapoints.** `get` may return None: the flow drops that index, and iterators skip it. So
there are `span()` indices, of which `len()` are datapoints where that is known. A stage whose
meaning depends on how many datapoints there are (batching, taking, joining: a `CountingStage`)
iterates over its input's iterator, which skips, unless the input surely drops none; by index it
refuses a None with `DroppedDatapoint`. A stage that treats each datapoint for itself walks the
indices if its input does (`walks_indices`), so that index, and with it every random number, is the
same in a worker and without one.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from towerpack.core.seeds import Stream
from towerpack.dataflow.iterators import (
    EpochIterator,
    FlowIterator,
    IndexIterator,
    OnePass,
    ReplayIterator,
    State,
)
from towerpack.dataflow.passes import Pass
from towerpack.dataflow.random_stage import RandomStage
from towerpack.dataflow.stacking import DroppedDatapoint
from towerpack.dataflow.stacking_parts import stack_in_parts
from towerpack.dataflow.statistics import (
    Counter,
    measured,
    measured_iterator,
    measured_rows,
    prepare,
)

__all__ = [
    "CountingStage",
    "DataFlow",
    "DataFlowTerminated",
    "DroppedDatapoint",
    "FlowIterator",
    "IndexIterator",
    "Pass",
    "ProxyDataFlow",
    "RNGDataFlow",
    "RandomStage",
    "Source",
    "Stage",
    "State",
    "as_flow",
]


class DataFlowTerminated(BaseException):
    """A flow can never produce again (its other end is gone); not an ordinary end of a pass."""


class DataFlow(ABC):
    """An iterable of datapoints: lists, tuples, dicts or nested trees of arrays and scalars.

    Guarantees of every flow in this room:

    - `iter(flow)` gives a fresh, independent, closable `FlowIterator`; the first is epoch 0, the
      next epoch 1, and so on. `iterate(epoch)` asks for one epoch by number.
    - `len(flow)` is exact, or raises TypeError.
    - The stream is a pure function of (seed, epoch): the same for any number of workers, except of
      runners over a flow without random access, see `MultiProcessRunner`.

    To write one, give it random access:

    >>> class Squares(DataFlow):
    ...     random_access = True
    ...     def __len__(self):
    ...         return 3
    ...     def get(self, index, pass_):
    ...         return [index, index * index]
    >>> list(Squares())
    [[0, 0], [1, 1], [2, 4]]
    >>> iterator = iter(Squares())
    >>> next(iterator), iterator.state()
    ([0, 0], {'epoch': 0, 'at': {'index': 1}})

    or, when there is none, write `__iter__` as a generator. Its iterator restores a state by
    drawing and dropping what came before, which is exact if the generator is deterministic.

    >>> class Countdown(DataFlow):
    ...     def __iter__(self):
    ...         yield from ([i] for i in (3, 2, 1))
    >>> iterator = iter(Countdown())
    >>> iterator.restore({'epoch': 0, 'at': {'count': 2}})
    >>> list(iterator)
    [[1]]
    """

    random_access: bool = False
    """Whether `get` reaches any datapoint by its index."""

    drops: bool | None = False
    """Whether some indices have no datapoint: never, by design (True), or perhaps (None)."""

    fresh_rows: bool = False
    """Whether `get_rows` makes new lists or dicts each time, which the caller may change."""

    reorders: bool = False
    """Whether this stage gives an index another datapoint in another epoch."""

    height: int = 0
    """Distance from the sources: it tells apart the random streams of the stages of a pipeline."""

    _next_pass: Pass = Pass()
    _generating: Pass | None = None  # the pass whose generator is running at this moment

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        defined = dict(cls.__dict__)
        # The oldest scripts define these two under their former names.
        if "get_data" in defined and "__iter__" not in defined:
            cls.__iter__ = defined["__iter__"] = defined["get_data"]  # type: ignore[method-assign]
        if "size" in defined and "__len__" not in defined and callable(defined["size"]):
            cls.__len__ = defined["size"]  # type: ignore[method-assign]
        if "__iter__" in defined:
            _adopt_generator(cls)
        if "each_row" not in defined and ("get" in defined or "get_rows" in defined):
            cls.each_row = DataFlow.each_row  # type: ignore[method-assign]  # not the parent's rows
        wrappers: dict[str, Callable[..., Any]] = {
            "get_rows": measured,
            "gather": measured,
            "each_row": measured_rows,
            "iterator": measured_iterator,
            "reset_state": _marked_ready,
        }
        for name, wrapper in wrappers.items():
            if name in defined:
                setattr(cls, name, wrapper(defined[name]))

    @cached_property
    def statistics(self) -> Counter:
        """What this stage has delivered and cost so far; see `towerpack.dataflow.statistics`."""
        return Counter()

    @property
    def walks_indices(self) -> bool:
        """Whether to iterate over this flow is to walk its indices, one after another."""
        return self.random_access

    def inputs(self) -> Sequence[DataFlow]:
        """The flows that this one reads from."""
        return ()

    def label(self) -> str:
        """What messages and tables call this stage: its class, and its function if it has one."""
        return type(self).__name__

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no len(): its length is not known in advance")

    def __bool__(self) -> bool:
        return True  # without this, `if flow:` would ask for a length that there may not be

    def span(self) -> int:
        """How many indices there are: `len()`, and those that turn out to be dropped."""
        return len(self)

    def __iter__(self) -> FlowIterator:
        if self._generating is not None:  # `super().__iter__()` in a subclass's own generator
            return _inherited_iterator(self, self._generating)
        pass_ = self._next_pass
        self._next_pass = pass_.at_epoch(pass_.epoch + 1)
        return EpochIterator(self, pass_)

    def iterate(self, epoch: int = 0) -> FlowIterator:
        """The iterator of one epoch; its state carries the epoch too."""
        return EpochIterator(self, Pass(epoch))

    @measured_iterator
    def iterator(self, pass_: Pass) -> FlowIterator:
        """The iterator of one pass: what stages call on their inputs, and what they implement."""
        if type(self).get is not DataFlow.get:
            return IndexIterator(self, pass_)
        raise TypeError(
            f"{type(self).__name__} defines no datapoints; expected `__iter__` as a generator, or "
            "`random_access = True` with `__len__` and `get(index, pass_)`"
        )

    def get(self, index: int, pass_: Pass) -> Any:
        """The datapoint at `index` of that pass; None when the flow drops it."""
        raise TypeError(f"{type(self).__name__} has no random access")

    @measured
    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        """The datapoints at several indices: override where many at once are cheaper."""
        return [self.get(int(index), pass_) for index in indices]

    def each_row(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Iterator[Any]:
        """The same, but each is made only when it is asked for: override where that is cheap."""
        for place in range(len(indices)):
            yield self.get_rows(indices[place : place + 1], pass_)[0]

    @measured
    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        """Several datapoints as one batch: override where arrays can be indexed as a whole."""
        return stack_in_parts(
            lambda part: self.get_rows(part, pass_),
            lambda part: self.each_row(part, pass_),
            indices,
            pass_.allocate,
        )

    def __getitem__(self, index: Any) -> Any:
        """The datapoint at `index` of epoch 0, so that a flow with random access is a Sequence."""
        if not self.random_access:
            raise TypeError(
                f"{type(self).__name__} has no random access; iterate over it, or build it on a "
                "source that has: DataFromArrays, DataFromList, LMDBData, ..."
            )
        if isinstance(index, slice):
            raise TypeError(f"expected an index, received {index}; FlowSequence(flow) takes slices")
        index, size = operator.index(index), self.span()
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for a flow of {size} datapoints")
        prepare(self)
        datapoint = self.get(index % size, Pass())
        if datapoint is None:
            raise DroppedDatapoint(index)
        return datapoint

    def generate(self) -> Iterable[Any]:
        """The datapoints of a flow that is written as a generator: what its `__iter__` was."""
        raise TypeError(f"{type(self).__name__} is not written as a generator")

    def pass_rng(self, pass_: Pass) -> Any:
        """What `self.rng` is to be during a pass of a flow that is written as a generator."""
        return None

    def reset_state(self) -> None:
        """Kept for old callers; never needed.

        A flow that overrides it, to open a file for example, has it called before its first use in
        each process that uses it, once.
        """

    # The oldest scripts call these.
    def get_data(self) -> FlowIterator:
        return iter(self)

    def size(self) -> int:
        return len(self)


def _marked_ready(reset_state: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(reset_state)
    def marked(self: DataFlow) -> None:
        self.statistics.ready = True
        reset_state(self)

    return marked


def _adopt_generator(cls: type[DataFlow]) -> None:
    """Makes a flow of a class whose `__iter__` is a plain generator: with epochs and a state."""
    generate = cls.__dict__["__iter__"]

    @functools.wraps(generate)
    def __iter__(self: DataFlow) -> Any:
        # Under way already: then it is `super().__iter__()` in the generator of a subclass.
        return DataFlow.__iter__(self) if self._generating is None else generate(self)

    cls.__iter__ = __iter__  # type: ignore[method-assign]
    cls.generate = generate  # type: ignore[method-assign]
    if "get" not in cls.__dict__:
        # It may inherit random access, which would go around this generator.
        cls.random_access = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]
    if "iterator" not in cls.__dict__:
        cls.iterator = _replay  # type: ignore[method-assign]


@measured_iterator
def _replay(self: DataFlow, pass_: Pass) -> FlowIterator:
    return ReplayIterator(self, pass_)


def _inherited_iterator(flow: DataFlow, pass_: Pass) -> FlowIterator:
    """The iterator that the flow would have, had its class no generator."""
    for base in type(flow).__mro__:
        found = base.__dict__.get("iterator", _replay)
        if found is not _replay:
            return found(flow, pass_)
    raise TypeError(f"{type(flow).__name__} is no DataFlow")


class Stage(DataFlow):
    """Base class of stages with one input, `self.ds`, and a datapoint for each of its.

    A subclass says what it makes of a datapoint: by `get` where the input has random access, and
    by `iterator` where it has not.
    """

    def __init__(self, ds: DataFlow | Iterable[Any]):
        self.ds = as_flow(ds)
        self.height = self.ds.height + 1

    def inputs(self) -> Sequence[DataFlow]:
        return (self.ds,)

    @property
    def random_access(self) -> bool:  # type: ignore[override]
        return self.ds.random_access

    @property
    def drops(self) -> bool | None:  # type: ignore[override]
        return self.ds.drops

    @property
    def walks_indices(self) -> bool:
        return self.random_access and self.ds.walks_indices

    def __len__(self) -> int:
        return len(self.ds)

    def span(self) -> int:
        return self.ds.span()


class CountingStage(Stage):
    """Base class of stages that count the input's datapoints: a dropped one is none of them."""

    drops = False

    @property
    def random_access(self) -> bool:  # type: ignore[override]
        return self.ds.random_access and self.ds.drops is not True

    @property
    def walks_indices(self) -> bool:
        return self.ds.walks_indices and self.ds.drops is False


class ProxyDataFlow(Stage):
    """A flow that stands for another, `self.ds`, and passes it on unchanged.

    Random access and position included. Subclasses written as a generator may use `iter(self.ds)`.
    """

    def iterator(self, pass_: Pass) -> FlowIterator:
        return self.ds.iterator(pass_)

    def get(self, index: int, pass_: Pass) -> Any:
        return self.ds.get(index, pass_)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        return self.ds.get_rows(indices, pass_)

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        return self.ds.gather(indices, pass_)


class RNGDataFlow(DataFlow):
    """Base class of flows written as a generator that draws from `self.rng`.

    `self.rng` is a `numpy.random.RandomState` of (seed, epoch), renewed for every pass, so that the
    stream can be repeated. A stage with random access asks for a generator of each index instead
    (`RandomStage`).

    >>> class Coin(RNGDataFlow):
    ...     def __iter__(self):
    ...         for _ in range(3):
    ...             yield [self.rng.randint(2)]
    >>> list(Coin().iterate(epoch=5)) == list(Coin().iterate(epoch=5))
    True
    """

    seed: int = 0
    rng: Any = None

    def reset_state(self) -> None:
        self.rng = self.pass_rng(Pass())  # for whoever draws outside of a pass

    def pass_rng(self, pass_: Pass) -> np.random.RandomState:
        stream = Stream(self.seed, *pass_.branch, self.height, "rng")
        # RandomState, not Generator: `rng.randint` and `rng.rand` are what such flows call.
        return np.random.RandomState(stream.fresh(pass_.epoch, 0).bit_generator)


class Source(DataFlow):
    """Any iterable as a flow: a list, a torch-style map dataset, a generator function's result.

    With `__len__` and `__getitem__` it has random access; otherwise each pass calls `iter` on it. A
    generator, or another iterator, gives one pass only; to begin a second one is an error.
    """

    def __init__(self, data: Any):
        self.data = data
        self.random_access = is_indexable(data)
        self._one_pass = OnePass(data) if isinstance(data, Iterator) else None

    def __len__(self) -> int:
        return len(self.data)

    def get(self, index: int, pass_: Pass) -> Any:
        return self.data[index]

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        many = getattr(self.data, "__getitems__", None)  # torch's protocol for whole batches
        if many is not None:
            return list(many([int(index) for index in indices]))
        data = self.data
        return [data[index] for index in map(int, indices)]

    def iterator(self, pass_: Pass) -> FlowIterator:
        if self._one_pass is not None:
            return self._one_pass.begin()
        return IndexIterator(self, pass_) if self.random_access else ReplayIterator(self, pass_)

    def generate(self) -> Iterable[Any]:
        return self.data


def is_indexable(data: Any) -> bool:
    """Whether `data[0]` to `data[len(data) - 1]` are its datapoints."""
    if isinstance(data, Mapping) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return False
    # torch's IterableDataset inherits a `__getitem__` that only raises.
    return all(base.__name__ != "IterableDataset" for base in type(data).__mro__)


def is_frame(data: Any) -> bool:
    """Whether it is a table of named columns: a frame of pandas or polars."""
    return hasattr(data, "columns") and hasattr(data, "dtypes") and hasattr(data, "to_numpy")


def require_positions(data: Any) -> None:
    """Refuses what has rows, but where `data[i]` is not row `i`."""
    if is_frame(data) or hasattr(data, "iloc"):
        columns = "frame" if is_frame(data) else "series.to_numpy()"
        raise TypeError(
            f"expected a sequence of datapoints, received a {type(data).__name__}, in which [i] is "
            f"not row i; use DataFromArrays({columns})"
        )
    if isinstance(data, tuple) and data and all(isinstance(x, np.ndarray) for x in data):
        raise TypeError(
            f"expected a sequence of datapoints, received a tuple of {len(data)} arrays; to get "
            "their rows use DataFromArrays(x, y)"
        )


def as_flow(data: Any) -> DataFlow:
    """The flow itself, or any other iterable or sequence made one."""
    if isinstance(data, DataFlow):
        return data
    if isinstance(data, Mapping | str | bytes):
        raise TypeError(
            f"expected a DataFlow, a sequence or an iterable, received a {type(data).__name__}; "
            "for a dict of arrays use DataFromArrays(arrays)"
        )
    require_positions(data)
    if isinstance(data, type):
        raise TypeError(
            f"expected a DataFlow, a sequence or an iterable, received the class {data.__name__}; "
            f"make one of it: {data.__name__}(...)"
        )
    if hasattr(data, "__iter__") or is_indexable(data):
        return Source(data)
    raise TypeError(
        f"expected a DataFlow, a sequence or an iterable, received {data!r} ({type(data).__name__})"
    )

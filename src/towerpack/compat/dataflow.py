"""Flows as scripts for tensorpack know them.

Every flow class of `towerpack.dataflow` exists here under its name, with what old scripts call:
`get_data()`, `size()`, `reset_state()`, and arguments such as `nr_proc=`. A subclass may define
these methods instead of `__iter__` and `__len__`:

>>> from towerpack.compat.dataflow import BatchData
>>> class Countdown(DataFlow):
...     def get_data(self):
...         yield from ([i] for i in (2, 1))
...     def size(self):
...         return 2
>>> len(Countdown()), list(BatchData(Countdown(), 2).get_data())[0][0].tolist()
(2, [2, 1])
"""

from __future__ import annotations

import functools
import os
import threading
from types import TracebackType
from typing import Any

from towerpack import dataflow as flows
from towerpack.compat.arguments import renamed
from towerpack.dataflow import iterators
from towerpack.dataflow.base import Indices
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator

ALIASES = [
    "DataFlowReentrantGuard",
    "MultiProcessMapAndBatchDataZMQ",
    "MultiProcessMapDataZMQ",
    "MultiProcessPrefetchData",
    "MultiThreadPrefetchData",
    "PrefetchData",
    "PrefetchDataZMQ",
]
"""Names that `towerpack.dataflow` has no more; they are part of `from towerpack import *`."""

__all__ = [*ALIASES, *flows.__all__]


class OldForms(flows.DataFlow):
    """Mixin that adds the methods of old scripts to a flow."""

    _prepared: tuple[int, int] | None = None  # process and object for which `reset_state` was run

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        own: Any = dict(cls.__dict__)
        generator = own.get("__iter__", own.get("get_data"))
        if generator is not None:
            cls.__iter__ = _in_epochs(generator)  # type: ignore[method-assign]
        if "size" in own and "__len__" not in own:
            cls.__len__ = own["size"]  # type: ignore[method-assign]
        if "reset_state" in own:
            cls.reset_state = _once(own["reset_state"])  # type: ignore[method-assign]

    def get_data(self) -> Any:
        return iter(self)

    def size(self) -> int:
        return len(self)

    def reset_state(self) -> None:
        """Need not be called.

        A subclass that overrides it, to open a file for example, has it called before its first use
        in each process that uses it, once.
        """

    def open(self, epoch: Epoch) -> FlowIterator:
        self._prepare()
        return super().open(epoch)

    def read(self, indices: Indices, epoch: Epoch) -> list[Any]:
        self._prepare()
        return super().read(indices, epoch)

    def read_batch(self, indices: Indices, epoch: Epoch) -> Any:
        self._prepare()
        return super().read_batch(indices, epoch)

    def _prepare(self) -> None:
        if self._prepared != (os.getpid(), id(self)):
            self.reset_state()
            self._prepared = os.getpid(), id(self)


def _in_epochs(generator: Any) -> Any:
    """An author's `__iter__` that gives an iterator with a state, epoch after epoch."""

    @functools.wraps(generator)
    def __iter__(self: OldForms) -> Any:
        self._prepare()
        # A class of the main script travels to workers by value: modules do, `running` does not.
        if iterators.running.replay is not None:  # as the input of a stage, or opened by `iterate`
            return generator(self)
        self._epochs_begun += 1
        return self.iterate(self._epochs_begun - 1)

    return __iter__


def _once(reset_state: Any) -> Any:
    """Marks the flow as prepared when a script calls `reset_state` itself."""

    @functools.wraps(reset_state)
    def marked(self: OldForms) -> None:
        self._prepared = os.getpid(), id(self)
        reset_state(self)

    return marked


OLD_ARGUMENTS = {
    "MultiProcessMapAndBatchData": {"nr_proc": "num_proc"},
    "MultiProcessMapData": {"nr_proc": "num_proc"},
    "MultiProcessMapDataComponentSharedArray": {"nr_proc": "num_proc"},
    "MultiProcessRunner": {"nr_prefetch": "num_prefetch", "nr_proc": "num_proc"},
    "MultiProcessRunnerZMQ": {"nr_proc": "num_proc"},
    "MultiThreadMapData": {"nr_thread": "num_thread"},
    "MultiThreadRunner": {"nr_prefetch": "num_prefetch", "nr_thread": "num_thread"},
}


def _adapted(name: str) -> Any:
    """The class of that name in `towerpack.dataflow`, with the old methods and arguments."""
    flow: Any = getattr(flows, name)
    body: dict[str, Any] = {"__module__": __name__, "__doc__": flow.__doc__}
    adapted: Any = type(name, (OldForms, flow), body)
    return renamed(adapted, **OLD_ARGUMENTS[name]) if name in OLD_ARGUMENTS else adapted


# The bases of users' classes, named here for type checkers; `__getattr__` adapts the others.
DataFlow = OldForms
ProxyDataFlow: Any = _adapted("ProxyDataFlow")
RNGDataFlow: Any = _adapted("RNGDataFlow")


class TestDataSpeed(OldForms, flows.TestDataSpeed):
    """`towerpack.dataflow.TestDataSpeed`, whose `start` has two older names."""

    def start_test(self) -> float:
        return self.start()

    start_testing = start_test


PrefetchData = MultiProcessPrefetchData = MultiProcessRunner = _adapted("MultiProcessRunner")
PrefetchDataZMQ = MultiProcessRunnerZMQ = _adapted("MultiProcessRunnerZMQ")
MultiThreadPrefetchData = MultiThreadRunner = _adapted("MultiThreadRunner")
MultiProcessMapDataZMQ = MultiProcessMapData = _adapted("MultiProcessMapData")
MultiProcessMapAndBatchDataZMQ = MultiProcessMapAndBatchData = _adapted(
    "MultiProcessMapAndBatchData"
)


def __getattr__(name: str) -> Any:
    found = getattr(flows, name, None) if name in flows.__all__ else None
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if isinstance(found, type) and issubclass(found, flows.DataFlow):
        found = _adapted(name)
    globals()[name] = found
    return found


class DataFlowReentrantGuard:
    """A context manager that refuses to be entered a second time before it is left.

    For a flow written as a generator whose iterators cannot share a resource:

        def __iter__(self):
            with self._guard:
                ...

    >>> guard = DataFlowReentrantGuard()
    >>> with guard:
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise threading.ThreadError(
                "this flow is being iterated already and cannot be twice at the same time; make a "
                "second one, or close() the first iterator"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[DataFlowReentrantGuard], tuple[()]]:
        return DataFlowReentrantGuard, ()

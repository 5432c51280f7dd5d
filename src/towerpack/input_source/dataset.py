"""From and to `tf.data`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.dataflow.base import DataFlow, State, as_flow
from towerpack.input_source.base import FeedfreeInput
from towerpack.input_source.cell import Cell
from towerpack.input_source.proxy import ProxyInput
from towerpack.input_source.queue import HOST, QueueInput
from towerpack.input_source.signature import checked_tensors


class TFDatasetInput(ProxyInput):
    """The elements of a `tf.data.Dataset`, each a batch; or a flow, by a `QueueInput`.

    In order, every element once. Elements are tuples in the order of the inputs, or dicts by name;
    their dtypes and shapes are checked against the inputs before the first is read. A dataset of
    known, finite size is repeated; one of unknown size ends training when it ends, unless you write
    `.repeat()`. Steps can be compiled if its elements have complete static shapes (`drop_remainder`
    when batching).

    To restore a position is to skip what was taken, which is exact if the dataset gives the same
    elements again; `shuffle` needs a `seed` for that.

    Args:
        dataset: is made by you, once: TensorFlow keeps what belongs to it until the process ends.
    """

    def __init__(self, dataset: Any):
        if isinstance(dataset, tf.data.Dataset):
            super().__init__(_DatasetReader(dataset))
        elif isinstance(dataset, DataFlow):
            super().__init__(QueueInput(dataset))
        else:
            raise TypeError(f"expected a tf.data.Dataset or a DataFlow, received {dataset!r}")

    @staticmethod
    def dataflow_to_dataset(df: Any, types: Any) -> Any:
        return dataflow_to_dataset(df, types)


class _DatasetReader(FeedfreeInput):
    _waited_before = 0.0

    def __init__(self, dataset: Any):
        cardinality = int(dataset.cardinality())
        self._size = cardinality if cardinality >= 0 else None
        if self._size == 0:
            raise ValueError("expected a dataset with elements, received an empty one")
        self._dataset = dataset.repeat() if self._size is not None else dataset
        # One that may end is read step by step: of a call that the end cuts short, nobody would
        # know how many steps it has run.
        self._endless = cardinality != tf.data.UNKNOWN_CARDINALITY
        self._skip = 0
        self._started = False
        # Graphs find the iterator there, so that another can take its place.
        self._iterator: Cell | None = None
        self._waited: Cell | None = None

    def setup(self, signature: Sequence[Any]) -> None:
        self.close()
        super().setup(signature)
        checked_tensors(self._dataset.element_spec, self.signature, "the dataset")
        spec = self._dataset.element_spec
        self._types = {
            "output_types": [s.dtype for s in tf.nest.flatten(spec)],
            "output_shapes": [s.shape for s in tf.nest.flatten(spec)],
        }
        with tf.init_scope(), tf.device(HOST):
            self._iterator = Cell(tf.raw_ops.AnonymousIteratorV3(**self._types))
            self._waited = Cell(tf.zeros([], tf.float64))
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._make(self._dataset.skip(self._skip) if self._skip else self._dataset)

    def _make(self, dataset: Any) -> None:
        place = self._place("start()")
        with tf.device(HOST):
            iterator = tf.raw_ops.AnonymousIteratorV3(**self._types)
            variant = tf.data.experimental.to_variant(dataset)
            tf.raw_ops.MakeIterator(dataset=variant, iterator=iterator)
            former = Cell(place.read())
            place.write(iterator)
        _free(former)
        self._started = True

    def _place(self, caller: str) -> Cell:
        if self._iterator is None:
            raise RuntimeError(f"expected setup(signature) before {caller}")
        return self._iterator

    def get_input_tensors(self) -> list[Any]:
        place = self._place("get_input_tensors()")
        begin = tf.timestamp()
        with tf.control_dependencies([begin]), tf.device(HOST):
            flat = tf.raw_ops.IteratorGetNext(iterator=place.read(), **self._types)
        with tf.control_dependencies(flat):
            waited = tf.timestamp() - begin
        if self._waited is not None:
            self._waited.add(waited)
        element = tf.nest.pack_sequence_as(self._dataset.element_spec, flat)
        return checked_tensors(element, self.signature, "the dataset")

    @property
    def waited(self) -> float:  # type: ignore[override]
        return self._waited_before if self._waited is None else float(self._waited.read())

    def size(self) -> int | None:
        return self._size

    def batch_size(self) -> int | None:
        shape = tf.nest.flatten(self._dataset.element_spec)[0].shape
        return (shape[0] if shape.rank else None) or super().batch_size()

    def wait(self, limit: int, taken: int, timeout: float | None = None) -> int:
        return limit if self._endless else min(limit, 1)

    def uniform(self, limit: int, taken: int) -> int:
        limit = self.wait(limit, taken)
        return limit if self.usual_shapes() is not None else 0

    def usual_shapes(self) -> list[tuple[int, ...]] | None:
        specs = checked_tensors(self._dataset.element_spec, self.signature, "the dataset")
        if all(spec.shape.is_fully_defined() for spec in specs):
            return [tuple(spec.shape) for spec in specs]
        return None

    def state(self, taken: int) -> State:
        return {"elements": self._skip + taken, "batch_size": self.batch_size()}

    def restore(self, state: State | None) -> None:
        if self._started:
            raise RuntimeError("expected restore() before start()")
        if state is None:
            return
        if not isinstance(state, dict) or "elements" not in state:
            raise ValueError(
                f"expected the state of a TFDatasetInput ('elements'), received {state!r}; was it "
                "saved by a run with another input source?"
            )
        saved, size = state.get("batch_size"), self.batch_size()
        elements = state["elements"]
        self._skip = elements * saved // size if saved and size else elements

    def reset_state(self) -> None:
        if self._started:
            self._skip = 0
            self._make(self._dataset)

    def position(self, batch: int) -> str:
        number = self._skip + batch
        if self._size is None:
            return f"element {number} of the dataset, counted from 0"
        epoch, number = divmod(number, self._size)
        return f"element {number} of pass {epoch} of the dataset, both counted from 0"

    def close(self) -> None:
        if self._waited is not None:
            self._waited_before = self.waited
            self._waited.close()
            self._waited = None
        if self._iterator is not None:
            _free(self._iterator)
            self._iterator = None
        self._started = False


def _free(iterator: Cell) -> None:
    """Lets go of the only reference to an iterator, in a thread that may have to wait for it.

    An iterator that tunes itself ends when the thread that tunes it does, and that one at times
    sleeps on until its next look: at intervals that double, up to a minute (TensorFlow 2.21).
    """
    threading.Thread(target=iterator.close, name="towerpack-free-iterator", daemon=True).start()


def dataflow_to_dataset(df: Any, types: Any) -> Any:
    """A flow as a `tf.data.Dataset`; each pass over it is the next epoch of the flow.

    In order, every datapoint once. An exception of the flow becomes an error of TensorFlow's that
    quotes it. TensorFlow keeps what belongs to such a dataset until the process ends: make it once,
    not in a loop. To train, `QueueInput(df)` is faster, and its position can be saved.

    >>> dataset = dataflow_to_dataset([[1, 0.5], [2, 0.25]], (tf.int32, tf.float32))
    >>> [(int(a), float(b)) for a, b in dataset]
    [(1, 0.5), (2, 0.25)]

    Args:
        types: a dtype or a `tf.TensorSpec` for each component; a dict of them by name for a flow
            of dicts.
    """
    flow = as_flow(df)
    structure = dict(types) if isinstance(types, dict) else tuple(types)
    signature = tf.nest.map_structure(
        lambda t: t if isinstance(t, tf.TensorSpec) else tf.TensorSpec(None, t), structure
    )
    epochs = itertools.count()

    def one_pass() -> Iterator[Any]:
        with flow.iterate(next(epochs)) as datapoints:
            for datapoint in datapoints:
                if isinstance(signature, dict):
                    yield {name: _copied(datapoint[name]) for name in signature}
                else:
                    yield tuple(map(_copied, datapoint))

    return tf.data.Dataset.from_generator(one_pass, output_signature=signature)


def _copied(component: Any) -> Any:
    """TensorFlow may use an array itself; the flow may give it again, with other content."""
    return component.copy() if isinstance(component, np.ndarray) else component

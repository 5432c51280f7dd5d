"""From and to `tf.data`."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.iterators import State
from towerpack.dataflow.source.iterable import as_flow
from towerpack.input_source.adapters import ProxyInput
from towerpack.input_source.base import EndOfData, FeedfreeInput
from towerpack.input_source.buffer import Batches
from towerpack.input_source.queue import HOST, QueueInput
from towerpack.input_source.signature import checked_tensors
from towerpack.input_source.traced import TracedReader


class TFDatasetInput(ProxyInput):
    """The elements of a `tf.data.Dataset`, each a batch; or a flow, by a `QueueInput`.

    In order, every element once. Elements are tuples in the order of the inputs, or dicts by name;
    their dtypes and shapes are checked against the inputs before the first is read. A dataset of
    known, finite size is repeated; one of unknown size ends training when it ends, unless you write
    `.repeat()`. Many steps can run in one call if its elements have complete static shapes
    (`drop_remainder` when batching).

    To restore a position is to skip what was taken, which is exact if the dataset gives the same
    elements again; `shuffle` needs a `seed` for that.

    On several ranks, each reads the whole dataset and keeps the elements of its own steps. So the
    dataset must give the same elements on all of them: an unseeded `shuffle` is refused.

    Args:
        dataset: is made by you, once: TensorFlow keeps what belongs to it until the process ends.
    """

    def __init__(self, dataset: Any):
        if isinstance(dataset, tf.data.Dataset):
            super().__init__(DatasetReader(dataset))
        elif isinstance(dataset, DataFlow):
            super().__init__(QueueInput(dataset))
        else:
            raise TypeError(f"expected a tf.data.Dataset or a DataFlow, received {dataset!r}")

    @staticmethod
    def dataflow_to_dataset(df: Any, types: Any) -> Any:
        return dataflow_to_dataset(df, types)


class DatasetReader(FeedfreeInput):
    """Reads the elements of a dataset in traced calls; see `TFDatasetInput`."""

    def __init__(self, dataset: Any):
        cardinality = int(dataset.cardinality())
        self._size = cardinality if cardinality >= 0 else None
        if self._size == 0:
            raise ValueError("expected a dataset with elements, received an empty one")
        self._dataset = dataset.repeat() if self._size is not None else dataset
        # One that may end is read batch by batch: elements that were read with the end are lost.
        self._endless = cardinality != tf.data.UNKNOWN_CARDINALITY
        self.ends_in_wait = self._endless
        self._skip = 0
        self._iterator: Any = None

    def setup(self, signature: Sequence[Any]) -> None:
        self.close()
        super().setup(signature)
        checked_tensors(self._dataset.element_spec, self.signature, "the dataset")

    def specs(self) -> list[Any]:
        found = checked_tensors(self._dataset.element_spec, self.signature, "the dataset")
        pairs = zip(found, self.signature, strict=True)
        return [tf.TensorSpec(element.shape, spec.dtype, spec.name) for element, spec in pairs]

    def start(self) -> None:
        if not self.signature:
            raise RuntimeError("expected setup(signature) before start()")
        if self._iterator is None:
            with tf.device(HOST):
                self._iterator = iter(self._own(self._dataset.skip(self._skip)))
                if self.share is not None and self.share.rank:  # it belongs to rank 0
                    first = next(self._iterator, None)
                    self.first_checksum = 0 if first is None else _checksum(first)

    def _own(self, dataset: Any) -> Any:
        """The elements of this rank's steps."""
        share = self.share
        if share is None:
            return dataset
        unit, ranks = share.unit, share.ranks
        # The first element comes to all ranks, which compare it.
        own = dataset.enumerate().filter(
            lambda n, _: tf.equal(n, 0) | tf.equal((n // unit) % ranks, share.rank)
        )
        return own.map(lambda _, element: element)

    def _element(self, iterator: Any) -> list[Any]:
        return checked_tensors(iterator.get_next(), self.signature, "the dataset")

    def _ready(self, batches: int, seconds: float | None) -> tuple[int, bool]:
        if self._iterator is None:
            raise RuntimeError("expected start() before batches are read: no data would ever come")
        return batches, True  # reading waits: `next` measures it

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        if self._reader is None:
            self._reader = TracedReader(self._element, self._iterator)
        try:
            with tf.device(HOST):
                limit = limit if self._endless else group
                batches = self._reader.read(limit, group, rows, self._iterator)
                if self.first_checksum is None and self.share is not None:
                    self.first_checksum = _checksum(batches.batch(0))
                return batches
        except tf.errors.OutOfRangeError:
            raise EndOfData from None

    def _label(self) -> str:
        return "the dataset"

    def size(self) -> int | None:
        return self._size

    def batch_size(self) -> int | None:
        shape = tf.nest.flatten(self._dataset.element_spec)[0].shape
        return (shape[0] if shape.rank else None) or super().batch_size()

    def state_at(self, delivered: int) -> State:
        ranks = self.share.ranks if self.share else 1
        return {"elements": self._skip + delivered * ranks, "batch_size": self.batch_size()}

    def restore(self, state: State | None) -> None:
        if self._iterator is not None:
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
        if self._iterator is not None:
            self.close()
            self._skip = self.delivered = self.held = 0
            self.start()

    def position(self, batch: int) -> str:
        number = self._skip + (int(self.share.place(batch)) if self.share else batch)
        if self._size is None:
            return f"element {number} of the dataset, counted from 0"
        epoch, number = divmod(number, self._size)
        return f"element {number} of pass {epoch} of the dataset, both counted from 0"

    def close(self) -> None:
        if self._iterator is not None:
            last, self._iterator = [self._iterator], None
            # An iterator that tunes itself ends when the thread that tunes it does, which may sleep
            # for up to a minute, at intervals that double (TensorFlow 2.21).
            threading.Thread(target=last.clear, name="towerpack-free-iterator", daemon=True).start()


def _checksum(element: Any) -> int:
    parts = [tf.io.serialize_tensor(part).numpy() for part in tf.nest.flatten(element)]
    return zlib.crc32(b"".join(parts))


def dataflow_to_dataset(df: Any, types: Any) -> Any:
    """A flow as a `tf.data.Dataset`; each iteration over it is the next epoch of the flow.

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

"""What an input source is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.dataflow.iterators import State
from towerpack.dataflow.parallel.share import Share
from towerpack.input_source.buffer import Batches
from towerpack.input_source.traced import TracedReader

LOOK_SECONDS = 0.2  # between two calls of `idle`, which may notice Ctrl-C


class EndOfData(Exception):
    """The source has come to its end, and all of its batches were handed out."""


class InputSource:
    """Hands out the batches that steps train on, in order, each once.

    `setup(signature)` is called once, with the inputs of the tower; `start()` before the first
    `next`; `close()` stops what was started, and may be called twice. The source counts what it
    hands out, so that `state()` is the position of the steps, whatever was prefetched.

    A source of your own overrides `get_input_tensors`, which is then traced: it makes one batch,
    as tensors in the order of the inputs.
    """

    signature: Sequence[Any] = ()

    devices: Sequence[str] = ()
    """Where the towers are, set by the trainer before `setup`; empty if TensorFlow chooses."""

    share: Share | None = None
    """Which batches belong to this process, if several train together; set like `devices`.

    A source of your own decides by it what it makes, or makes something else on each rank.
    """

    waited: float = 0.0
    """Seconds that steps have had to wait for their data so far."""

    delivered: int = 0
    """How many batches were handed out since `start()`."""

    held: int = 0
    """How many of the last batches that were handed out no step has trained on."""

    ends_in_wait = False
    """Whether `wait` finds the end of the data, and not only `next`."""

    first_checksum: int | None = None
    """Of the first batch of all ranks, where they can compare it only after it has been read."""

    _reader: TracedReader | None = None

    def setup(self, signature: Sequence[Any]) -> None:
        self.signature = list(signature)
        self.delivered = self.held = 0
        self._reader = None

    def start(self) -> None:
        """Begins to produce. Does nothing if that has begun."""

    def specs(self) -> list[Any]:
        """The signature, with those dimensions filled in that every batch surely has."""
        return list(self.signature)

    def wait(
        self,
        batches: int = 1,
        seconds: float | None = None,
        idle: Callable[[], None] | None = None,
    ) -> int:
        """Waits until the next `batches` batches can be handed out.

        Returns how many can be: fewer after `seconds`, at the end of the data, or if the source
        keeps no more ready. Calls `idle` from time to time while waiting; it may raise to leave.

        Raises:
            EndOfData: the data has ended, and there is no further batch.
        """
        begun = time.perf_counter()
        try:
            while True:
                left = None if seconds is None else max(0.0, begun + seconds - time.perf_counter())
                pause = left
                if idle is not None:
                    pause = LOOK_SECONDS if left is None else min(LOOK_SECONDS, left)
                ready, final = self._ready(batches, pause)
                if final or ready >= batches or (left is not None and pause == left):
                    break
                if idle is not None:
                    idle()
        finally:
            self.waited += time.perf_counter() - begun
        if not ready and final:
            self.raise_failure()
            raise EndOfData(f"{self._label()} has ended after {self.delivered} batches")
        return min(ready, batches)

    def next(self, limit: int = 1, group: int = 1, rows: int = 1) -> Batches:
        """Hands out the next batches, after waiting for the first `group`: those of one step.

        There are at most `limit`, and a multiple of `group`. Several groups come stacked, in arrays
        of `rows` rows.

        Raises:
            EndOfData: the data has ended, and there are fewer than `group` batches.
        """
        if self.wait(group) < group:
            self.raise_failure()
            raise EndOfData(f"{self._label()} has ended after {self.delivered} batches")
        self._forget_before(self.delivered)
        begun = time.perf_counter()
        try:
            batches = self._take(max(limit, group), group, rows)
        except EndOfData:
            raise EndOfData(f"{self._label()} has ended after {self.delivered} batches") from None
        finally:
            self.waited += time.perf_counter() - begun
        if batches.count % group:
            raise RuntimeError(
                f"expected batches for whole steps of {group}, received {batches.count}; were "
                "batches read by hand from a source that is staged for several towers?"
            )
        self.delivered += batches.count
        self.held = 0
        return batches

    def get_input_tensors(self) -> list[Any]:
        """The tensors of the next batch: at once, or, in a traced function, in each call of it."""
        if tf.executing_eagerly():
            return self.next().tensors(0)

        def read() -> list[np.ndarray]:
            try:
                return [np.asarray(component) for component in self.next().batch(0)]
            except EndOfData as end:  # of which TensorFlow makes an OutOfRangeError
                raise StopIteration from end

        dtypes = [spec.dtype for spec in self.signature]
        tensors = tf.numpy_function(read, [], dtypes, name="next_batch")
        pairs = zip(tensors, self.specs(), strict=True)
        return [tf.ensure_shape(tensor, spec.shape) for tensor, spec in pairs]

    def state(self) -> State | None:
        """The position after the batches that steps have trained on, as JSON.

        None for a source without a position.
        """
        return self.state_at(self.delivered - self.held)

    def restore(self, state: State | None) -> None:
        """Goes to a position that `state` gave, before `start()`."""

    def reset_state(self) -> None:
        """Goes back to the beginning, before every round of inference.

        No step may be running. Before `start()` there is nothing to do.
        """

    def size(self) -> int | None:
        """How many batches make an epoch; None if that is not known."""
        return None

    def batch_size(self) -> int | None:
        """How many datapoints are in a batch; None if that is not known in advance."""
        shape = self.signature[0].shape if self.signature else None
        return shape[0] if shape is not None and shape.rank else None

    def position(self, batch: int) -> str:
        """Where in the data a batch is, for messages; counted from 0 at `start()`."""
        return f"batch {batch} since the start"

    def raise_failure(self) -> None:
        """Raises the error that ended the source, if one did."""

    def summaries(self) -> dict[str, float]:
        """Numbers for the epoch's log."""
        return {}

    def close(self) -> None:
        """Stops and frees everything."""

    def _label(self) -> str:
        return type(self).__name__

    def _ready(self, batches: int, seconds: float | None) -> tuple[int, bool]:
        """How many batches can be taken, after waiting; whether that is final until some are."""
        return batches, True

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        """The next batches; `_ready` has found the first `group`."""
        if type(self).get_input_tensors is InputSource.get_input_tensors:
            raise NotImplementedError(f"{type(self).__name__} must define get_input_tensors()")
        if self._reader is None:
            self._reader = TracedReader(self.get_input_tensors)
        return self._reader.read(limit, group, rows)

    def state_at(self, delivered: int) -> State | None:
        """The position after that many batches."""
        return None

    def _forget_before(self, delivered: int) -> None:
        """Positions before that many batches are not asked for any more."""


class FeedfreeInput(InputSource):
    """A source that several towers may read: it does not need the training thread."""

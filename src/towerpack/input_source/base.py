"""What an input source is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack.dataflow.base import State
from towerpack.input_source.shelf import Stack


class EndOfData(Exception):
    """The source has come to its end, and every batch of it was taken."""


class InputSource:
    """Where a tower's inputs come from, as tensors.

    `setup(signature)` is called once; `start()` before the first step; every call of
    `get_input_tensors()` while tracing adds one read to the graph, so that each tower gets its own
    batch; `close()` stops what was started and may be called twice.

    **Taken batches.** Whoever runs the steps counts the batches that they have taken since
    `start()`, and passes that count, `taken`, to the methods that need it. A source runs ahead of
    the steps, and in a graph nobody sees when a batch leaves it; so it is this count that makes
    positions exact.

    **Waiting.** Call `wait` before each call of the traced step: the source then waits for its data
    in Python, where Ctrl-C works and the time is measured (`waited`), and not inside the graph.
    """

    signature: Sequence[Any] = ()

    waited: float = 0.0
    """Seconds that steps have had to wait for their data so far."""

    held: int = 0
    """How many batches a `StagingInput` has taken from here that no step has taken yet."""

    def setup(self, signature: Sequence[Any]) -> None:
        self.signature = list(signature)

    def reserve(self, batches: int) -> None:
        """Makes room, before `setup`, for calls that take as many batches at once."""

    def start(self) -> None:
        """Begins to produce."""

    def get_input_tensors(self) -> list[Any]:
        raise NotImplementedError

    def size(self) -> int | None:
        """How many batches make an epoch; None when that is not known."""
        return None

    def batch_size(self) -> int | None:
        """How many datapoints a tower takes at once; None when that is not known in advance."""
        shape = self.signature[0].shape if self.signature else None
        return shape[0] if shape is not None and shape.rank else None

    def wait(self, limit: int, taken: int, timeout: float | None = None) -> int:
        """Blocks until the next `limit` batches can be read without waiting.

        Returns how many can be: `limit`, or fewer (perhaps 0) after `timeout` seconds or before the
        end of the data. At the end raises the error that ended the source, or `EndOfData`.
        """
        return limit

    def uniform(self, limit: int, taken: int) -> int:
        """How many of the next `limit` batches surely have the shapes `usual_shapes()`.

        Counts from the first on, up to the first that has not. Waits as `wait` does. 0 when nothing
        is known of the next batch.
        """
        return 0

    def usual_shapes(self) -> list[tuple[int, ...]] | None:
        """The shapes of the inputs in a usual batch; None before they are known."""
        return None

    def take(self, count: int, taken: int, rows: int) -> Stack | None:
        """The next `count` batches, in arrays of `rows` rows, one row for each batch.

        `uniform` must have said that they are there. None where only the graph reads the source.
        """
        return None

    def offer(self, count: int, taken: int) -> int:
        """Before the graph reads `count` batches of which `wait` has said that they are there.

        Returns how many of them it finds: fewer, but some, from a source that keeps more than the
        graph can be given at once, as one from which some were taken by `take`. Never waits.
        """
        return count

    def state(self, taken: int) -> State | None:
        """The position after `taken` batches, as JSON; None for a source without a position."""
        return None

    def restore(self, state: State | None) -> None:
        """Goes, before `start()`, to a position that `state` gave; `taken` is 0 there."""

    def reset_state(self) -> None:
        """Goes back to the beginning, where `taken` is 0: before every round of inference.

        No step may be running. Before `start()` there is nothing to do.
        """

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


class FeedfreeInput(InputSource):
    """A source that is read by the graph alone: what several towers, and fused steps, need."""

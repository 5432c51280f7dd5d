"""What an input source is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class InputSource:
    """Where a tower's inputs come from, as tensors.

    `setup(signature)` is called once; `start()` before the first step; every call of
    `get_input_tensors()` while tracing adds one read to the graph, so that each tower gets its own
    batch; `close()` stops what was started and may be called twice.
    """

    signature: Sequence[Any] = ()

    def setup(self, signature: Sequence[Any]) -> None:
        self.signature = list(signature)

    def start(self) -> None:
        """Begins to produce."""

    def get_input_tensors(self) -> list[Any]:
        raise NotImplementedError

    def size(self) -> int | None:
        """How many batches make an epoch; None when that is not known."""
        return None

    def raise_failure(self) -> None:
        """Raises the error that ended the source, if one did."""

    def summaries(self) -> dict[str, float]:
        """Numbers for the epoch's log."""
        return {}

    def close(self) -> None:
        """Stops and frees everything."""

"""Data read when the step needs it, without a thread."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.dataflow import kept_workers
from towerpack.dataflow.base import DataFlowTerminated
from towerpack.input_source.flow_input import FlowInput
from towerpack.input_source.journal import Mark

MAX_AHEAD = 32  # batches read before a call of the step: enough to run as many steps in one


class FeedInput(FlowInput):
    """Iterates a flow in the thread that trains, between the steps: simple, and easy to debug.

    In order, every datapoint once. The step waits for its data each time; `QueueInput` prepares it
    meanwhile. For one tower. Positions as those of `QueueInput`.

    Args:
        infinite: whether to go on with the next pass at the end of the flow. If not, the end of
            the flow ends training.
    """

    def __init__(self, ds: Any, infinite: bool = True):
        self.infinite = infinite
        self._closing: contextlib.ExitStack | None = None
        super().__init__(ds)

    def _clear(self) -> None:
        super()._clear()
        self._ready: deque[Sequence[np.ndarray]] = deque()

    def start(self) -> None:
        if not self.signature:
            raise RuntimeError("expected setup(signature) before start()")
        if self._closing is None and not self._ended:
            with contextlib.ExitStack() as stack:
                stack.enter_context(kept_workers(self.flow))
                self._stream, self._check = self._open(self.infinite)
                stack.callback(self._stream.close)
                self._closing = stack.pop_all()

    def _started(self) -> bool:
        return self._closing is not None

    def get_input_tensors(self) -> list[Any]:
        dtypes = [spec.dtype for spec in self.signature]
        tensors = tf.numpy_function(self._take, [], dtypes, name="feed")
        shapes = self._shapes()
        return [tf.ensure_shape(t, shape) for t, shape in zip(tensors, shapes, strict=True)]

    def _take(self) -> Sequence[np.ndarray]:
        """The next batch, for the graph; TensorFlow makes an OutOfRangeError of a StopIteration."""
        if not self._ready:
            if self._closing is None:
                raise RuntimeError("expected start() before the first step")
            self._read()
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def _read(self) -> None:
        """One more batch, unless this is the end."""
        try:
            datapoint = next(self._stream)
            components = self._check(datapoint)
        except (StopIteration, DataFlowTerminated):
            self._ended = True
        except Exception as error:  # noqa: BLE001 (raised after what was read before)
            self._ended, self._failure = True, error
        else:
            self._note(self._stream, self._check)
            self._ready.append([x if self._is_ours(x) else x.copy() for x in components])
            self._note_put(self._stream)

    def _wait_for(self, target: int, timeout: float | None) -> None:
        if self._closing is None:
            raise RuntimeError("expected start() before wait(): no data would ever come")
        end = None if timeout is None else time.monotonic() + timeout
        target = min(target, self._journal.taken + MAX_AHEAD)
        while self._journal.count < target and not self._ended:
            if end is not None and time.monotonic() >= end:
                return
            self._read()

    def reset_state(self) -> None:
        if self._closing is not None:
            self.raise_failure()
            self.close()
            self._begin = Mark(0, {"epoch": 0}, 0)
            self._clear()
            self.start()

    def close(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            self._ended = True
            closing.close()

"""Sources around other sources, and the source that a trainer uses by default."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.dataflow.iterators import State
from towerpack.input_source.base import EndOfData, FeedfreeInput, InputSource
from towerpack.input_source.buffer import Batches, as_tensor
from towerpack.input_source.queue import QueueInput
from towerpack.input_source.tensor import placeholder


class ProxyInput(FeedfreeInput):
    """Passes everything on to `self.input`; a subclass changes something about it."""

    def __init__(self, input: InputSource):
        if not isinstance(input, InputSource):
            raise TypeError(
                f"expected an input source, received {input!r}; a flow becomes one by "
                "QueueInput(ds)"
            )
        self.input = input
        self.ends_in_wait = input.ends_in_wait

    @property
    def first_checksum(self) -> int | None:  # type: ignore[override]
        return self.input.first_checksum

    def setup(self, signature: Sequence[Any]) -> None:
        super().setup(signature)
        self.input.devices, self.input.share = self.devices, self.share
        self.input.setup(signature)

    def start(self) -> None:
        self.input.start()

    def specs(self) -> list[Any]:
        return self.input.specs()

    def size(self) -> int | None:
        return self.input.size()

    def batch_size(self) -> int | None:
        return self.input.batch_size()

    def restore(self, state: State | None) -> None:
        self.input.restore(state)

    def reset_state(self) -> None:
        self.delivered = self.held = 0
        self.input.reset_state()

    def position(self, batch: int) -> str:
        return self.input.position(batch)

    def raise_failure(self) -> None:
        self.input.raise_failure()

    def summaries(self) -> dict[str, float]:
        return self.input.summaries()

    def close(self) -> None:
        self.input.close()

    def _label(self) -> str:
        return self.input._label()

    def _ready(self, batches: int, seconds: float | None) -> tuple[int, bool]:
        return self.input._ready(batches, seconds)

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        return self.input._take(limit, group, rows)

    def state_at(self, delivered: int) -> State | None:
        return self.input.state_at(delivered)

    def _forget_before(self, delivered: int) -> None:
        self.input._forget_before(delivered)


class StagingInput(ProxyInput):
    """Copies the next batches to the devices while the step works on the current ones.

    In order, every batch once, and the position stays that of the batches that steps have trained
    on. It is useful where the copy takes time, on GPUs. A thread takes what the last call asked
    for once more, and copies the rows of each tower to the tower's device. An error, or the end of
    the data, comes after what was staged before it.

    Args:
        input: a source that is read without the training thread: not a `FeedInput`, and not a
            `StagingInput`.
        nr_stage: how many calls' batches are kept ready.
        device: where; by default on the devices of the towers.
    """

    def __init__(self, input: InputSource, nr_stage: int = 1, device: str | None = None):
        super().__init__(input)
        if isinstance(input, StagingInput) or not isinstance(input, FeedfreeInput):
            raise TypeError(
                f"expected a source that is read without the training thread, and not staged "
                f"already, received a {type(input).__name__}; QueueInput is one"
            )
        if nr_stage < 1:
            raise ValueError(f"expected a positive nr_stage, received {nr_stage}")
        self.nr_stage, self.device = nr_stage, device
        self._thread: ThreadPoolExecutor | None = None
        self._clear()

    def _clear(self) -> None:
        self._coming: deque[Future[Batches]] = deque()
        self._current: Batches | None = None  # the first of what is staged

    def setup(self, signature: Sequence[Any]) -> None:
        self.close()
        super().setup(signature)

    def start(self) -> None:
        super().start()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="StagingInput")

    def _ready(self, batches: int, seconds: float | None) -> tuple[int, bool]:
        if self._current is None and not self._coming:
            return super()._ready(batches, seconds)
        if self._current is None:
            done, _ = wait_for([self._coming[0]], seconds)
            if not done:
                return 0, False
            if self._coming[0].exception() is not None:
                return 0, True
            self._current = self._coming.popleft().result()
        return self._current.count, True

    def raise_failure(self) -> None:
        if self._current is not None or (self._coming and not self._coming[0].done()):
            return
        error = self._coming[0].exception() if self._coming else None
        if error is not None and not isinstance(error, EndOfData):
            raise error
        if error is not None or not self._coming:
            super().raise_failure()

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        if self._thread is None:
            raise RuntimeError("expected start() before batches are read")
        batches = self._current or self._staged(limit, group, rows)
        self._current = None
        if batches.count > limit:
            batches, self._current = batches.split(limit // group * group)
        while self._current is None and len(self._coming) < self.nr_stage:
            self._coming.append(self._thread.submit(self._staged, limit, group, rows))
        return batches

    def _staged(self, limit: int, group: int, rows: int) -> Batches:
        """Takes batches from the input, and copies them to the devices."""
        if self.input.wait(group) < group:
            self.input.raise_failure()
            raise EndOfData
        batches = self.input._take(max(limit, group), group, rows)
        self.input.delivered += batches.count
        devices: list[str | None] = [self.device] if self.device else [*self.devices] or [None]
        if batches.count == group or len(batches.stacks) > 1:
            stacks = [
                _copied(batches.batch(n), devices[n % len(devices)]) for n in range(batches.count)
            ]
            return Batches(stacks, 0, batches.count, stacked=False)
        first, (stack,) = batches.first, batches.stacks
        rows_of = [slice(first + tower, first + batches.count, group) for tower in range(group)]
        stacks = [
            _copied([array[rows_of[tower]] for array in stack], devices[tower % len(devices)])
            for tower in range(group)
        ]
        return Batches(stacks, 0, batches.count)

    def reset_state(self) -> None:
        self._stop()
        super().reset_state()
        self.start()

    def close(self) -> None:
        self.input.close()  # ends the wait of the thread
        self._stop()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(cancel_futures=True)
        self._clear()


def _copied(components: Sequence[Any], device: str | None) -> list[Any]:
    arrays = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for x in components]
    with tf.device(device):
        return [tf.identity(as_tensor(array)) for array in arrays]


class RemappedInput(ProxyInput):
    """See `remap_input_source`."""

    def __init__(self, input: InputSource, names: Sequence[str]):
        super().__init__(input)
        self.names = list(names)
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"expected each name once, received {self.names}")

    def setup(self, signature: Sequence[Any]) -> None:
        declared = {spec.name: spec for spec in signature}
        unknown = [name for name in self.names if name not in declared]
        if unknown:
            raise ValueError(
                f"expected names of the inputs {list(declared)}, received also {unknown}"
            )
        super().setup([declared[name] for name in self.names])
        self.signature = list(signature)

    def specs(self) -> list[Any]:
        known = dict(zip(self.names, self.input.specs(), strict=True))
        return [known.get(spec.name, spec) for spec in self.signature]

    def get_input_tensors(self) -> list[Any]:
        given = dict(zip(self.names, self.input.get_input_tensors(), strict=True))
        return [
            given[spec.name] if spec.name in given else placeholder(spec) for spec in self.signature
        ]

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        missing = [spec.name for spec in self.signature if spec.name not in self.names]
        if missing:
            raise ValueError(f"expected a source of all inputs, received none of {missing}")
        batches = self.input._take(limit, group, rows)
        order = [self.names.index(spec.name) for spec in self.signature]
        stacks = [[stack[number] for number in order] for stack in batches.stacks]
        return Batches(stacks, batches.first, batches.count, batches.stacked)


def remap_input_source(input: InputSource, names: Sequence[str]) -> InputSource:
    """The source with its components under other names, or in another order.

    `names` says which input each component is. Inputs that are not among them become placeholders,
    as in a `PlaceholderInput`: they must be fed, or not be used.

    Args:
        input: gives a component for each of the names.
    """
    return RemappedInput(input, names)


def apply_default_prefetch(input_source_or_dataflow: Any, trainer: Any) -> InputSource:
    """The input as a trainer best reads it.

    A flow is read by a `QueueInput`, for every trainer. For a trainer with several GPUs that, or
    any other source that it was given, is wrapped in a `StagingInput`.
    """
    source = input_source_or_dataflow
    if not isinstance(source, InputSource):
        source = QueueInput(source)
    devices = getattr(getattr(trainer, "replication", None), "devices", ())
    if len(devices) > 1 and not isinstance(source, FeedfreeInput):
        raise TypeError(
            f"expected a source that several towers can read, such as QueueInput, received a "
            f"{type(source).__name__}, which serves one"
        )
    on_gpus = len(devices) > 1 and all("gpu" in device.lower() for device in devices)
    if on_gpus and not isinstance(source, StagingInput):
        return StagingInput(source)
    return source

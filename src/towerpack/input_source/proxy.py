"""A source that stands for another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack.dataflow.base import State
from towerpack.input_source.base import FeedfreeInput, InputSource


class ProxyInput(FeedfreeInput):
    """Passes everything on to `self.input`; a subclass changes what it is about."""

    def __init__(self, input: InputSource):
        if not isinstance(input, InputSource):
            raise TypeError(
                f"expected an input source, received {input!r}; a flow becomes one by "
                "QueueInput(ds)"
            )
        self.input = input

    @property
    def waited(self) -> float:  # type: ignore[override]
        return self.input.waited

    @property
    def held(self) -> int:
        return self.input.held

    @held.setter
    def held(self, batches: int) -> None:
        self.input.held = batches

    def setup(self, signature: Sequence[Any]) -> None:
        super().setup(signature)
        self.input.setup(signature)

    def reserve(self, batches: int) -> None:
        self.input.reserve(batches)

    def start(self) -> None:
        self.input.start()

    def get_input_tensors(self) -> list[Any]:
        return self.input.get_input_tensors()

    def size(self) -> int | None:
        return self.input.size()

    def batch_size(self) -> int | None:
        return self.input.batch_size()

    def wait(self, limit: int, taken: int, timeout: float | None = None) -> int:
        return self.input.wait(limit, taken, timeout)

    def uniform(self, limit: int, taken: int) -> int:
        return self.input.uniform(limit, taken)

    def usual_shapes(self) -> list[tuple[int, ...]] | None:
        return self.input.usual_shapes()

    def state(self, taken: int) -> State | None:
        return self.input.state(taken)

    def restore(self, state: State | None) -> None:
        self.input.restore(state)

    def reset_state(self) -> None:
        self.input.reset_state()

    def position(self, batch: int) -> str:
        return self.input.position(batch)

    def raise_failure(self) -> None:
        self.input.raise_failure()

    def summaries(self) -> dict[str, float]:
        return self.input.summaries()

    def close(self) -> None:
        self.input.close()

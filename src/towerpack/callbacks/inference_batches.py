"""The batches of a validation set, from a flow or from any input source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from towerpack._tensorflow import tf
from towerpack.dataflow.base import DataFlow, as_flow
from towerpack.input_source import InputSource, StagingInput
from towerpack.input_source.base import EndOfData
from towerpack.input_source.signature import InputCheck


class Batches(Protocol):
    """One pass after another over a set; every batch of it exactly once, in its order."""

    name: str

    def setup(self, signature: Sequence[Any]) -> None:
        """Says which inputs the tower has."""

    def size(self) -> int | None:
        """How many batches a pass has; None when that is not known."""

    def one_pass(self) -> contextlib.AbstractContextManager[Iterator[list[Any]]]:
        """The batches of a new pass."""

    def close(self) -> None:
        """Frees what the passes held."""


def batches_of(data: Any) -> Batches:
    if isinstance(data, StagingInput):
        raise ValueError(
            "expected a flow or an input source without staging, received StagingInput: it would "
            "hold back the last batches of a pass. Pass the input inside it"
        )
    return SourceBatches(data) if isinstance(data, InputSource) else FlowBatches(as_flow(data))


def batch_size(inputs: Sequence[Any], signature: Sequence[Any]) -> int | None:
    """The number of samples in a batch: the first dimension of its inputs.

    Inputs that the model declares with a size of their own do not count beside those with an open
    batch size. None if the others disagree.
    """
    open_ = [x for x, spec in zip(inputs, signature, strict=True) if not _is_fixed(spec.shape)]
    sizes = {int(x.shape[0]) for x in open_ or inputs[:1] if len(x.shape)}
    return sizes.pop() if len(sizes) == 1 else None


def _is_fixed(shape: Any) -> bool:
    return shape.rank == 0 or (shape.rank is not None and shape[0] is not None)


class FlowBatches:
    """Batches of a flow, always of its epoch 0: a validation set is read in one order."""

    def __init__(self, flow: DataFlow):
        self.flow, self.name = flow, type(flow).__name__

    def setup(self, signature: Sequence[Any]) -> None:
        self._check = InputCheck(signature, self.name)

    def size(self) -> int | None:
        try:
            return len(self.flow)
        except TypeError:
            return None

    @contextlib.contextmanager
    def one_pass(self) -> Iterator[Iterator[list[Any]]]:
        with self.flow.iterate(0) as datapoints:
            yield (list(self._check(datapoint)) for datapoint in datapoints)

    def close(self) -> None: ...


class SourceBatches:
    """Batches of an input source: exactly `size()` in each pass, or up to its end."""

    def __init__(self, source: InputSource):
        self.source, self.name = source, type(source).__name__

    def setup(self, signature: Sequence[Any]) -> None:
        self.source.setup(signature)
        self._read = tf.function(self.source.get_input_tensors, autograph=False)

    def size(self) -> int | None:
        return self.source.size()

    @contextlib.contextmanager
    def one_pass(self) -> Iterator[Iterator[list[Any]]]:
        self.source.reset_state()
        self.source.start()
        yield self._batches()

    def _batches(self) -> Iterator[list[Any]]:
        size, done = self.size(), 0
        while size is None or done < size:
            try:
                self.source.wait(1, done)
                inputs = self._read()
            except (EndOfData, tf.errors.OutOfRangeError) as end:
                self.source.raise_failure()
                if size is not None:
                    raise RuntimeError(
                        f"expected {size} batches from {self.name}, as its size says, but it ended "
                        f"after {done}"
                    ) from end
                return
            done += 1
            yield list(inputs)

    def close(self) -> None:
        self.source.close()

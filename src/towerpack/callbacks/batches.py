"""The batches of a validation set: all of them, or those that one of several ranks evaluates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.parallel.share import Share, by_index, share_of
from towerpack.dataflow.source.iterable import as_flow
from towerpack.input_source import InputSource, StagingInput
from towerpack.input_source.base import EndOfData
from towerpack.input_source.flow_input import FlowInput
from towerpack.input_source.part import goes_back
from towerpack.input_source.signature import InputCheck


class FlowBatches:
    """The batches of a flow. Each pass reads epoch 0, so a validation set always has one order."""

    def __init__(self, flow: DataFlow):
        self.flow, self.name = flow, type(flow).__name__
        self._share: Share | None = None

    def setup(self, signature: Sequence[Any], share: Share | None = None) -> None:
        """Gets ready to read the batches of a share, or all of them."""
        self._check = InputCheck(signature, self.name)
        self._share = share
        self._own = None if share is None else share_of(self.flow, share, 0)

    def divisible(self) -> bool:
        """Whether several ranks can share the batches: all read the same ones, by index."""
        return goes_back(self.flow) and by_index(self.flow) is not None

    def size(self) -> int | None:
        """The number of batches in the set; None if it is unknown."""
        try:
            return len(self.flow)
        except TypeError:
            return None

    @contextlib.contextmanager
    def one_pass(self) -> Iterator[Iterator[list[Any]]]:
        """Every batch of the set, or of the share, exactly once, in its order."""
        flow = self._own or self.flow
        with flow.iterate(0) as datapoints:
            own: Iterable[Any] = datapoints
            if self._own is not None:  # its epoch is as long as that of the whole flow
                own = islice(datapoints, _count(self._share, self.size()))
            elif (share := self._share) is not None:
                own = (batch for number, batch in enumerate(datapoints) if share.has(number))
            yield (list(self._check(datapoint)) for datapoint in own)

    def close(self) -> None: ...


class SourceBatches:
    """The batches of an input source: `size()` of them in each pass, or all until it ends."""

    def __init__(self, source: InputSource):
        self.source, self.name = source, type(source).__name__

    def setup(self, signature: Sequence[Any], share: Share | None = None) -> None:
        """Gets ready to read the batches of a share, or all of them."""
        self.source.share = share
        self.source.setup(signature)

    def divisible(self) -> bool:
        """Whether several ranks can share the batches: all read the same ones, by index."""
        return isinstance(self.source, FlowInput) and FlowBatches(self.source.flow).divisible()

    def size(self) -> int | None:
        """The number of batches in the set; None if it is unknown."""
        return self.source.size()

    @contextlib.contextmanager
    def one_pass(self) -> Iterator[Iterator[list[Any]]]:
        """Every batch of the set, or of the share, exactly once, in its order."""
        self.source.reset_state()
        self.source.start()
        yield self._batches()

    def _batches(self) -> Iterator[list[Any]]:
        size, done = _count(self.source.share, self.size()), 0
        while size is None or done < size:
            try:
                inputs = self.source.next().tensors(0)
            except EndOfData as end:
                if size is not None:
                    raise RuntimeError(
                        f"expected {size} batches from {self.name}, according to its size, but it "
                        f"ended after {done}"
                    ) from end
                return
            done += 1
            yield inputs

    def close(self) -> None:
        self.source.close()


def batches_of(data: Any) -> FlowBatches | SourceBatches:
    if isinstance(data, StagingInput):
        raise ValueError(
            "expected a flow or an input source without staging, received StagingInput, which "
            "would hold back the last batches of a pass. Pass the input inside it"
        )
    return SourceBatches(data) if isinstance(data, InputSource) else FlowBatches(as_flow(data))


def _count(share: Share | None, size: int | None) -> int | None:
    """How many of `size` batches belong to the share.

    >>> [_count(Share(rank, 3), 7) for rank in range(3)]
    [3, 2, 2]
    """
    if share is None or size is None:
        return size
    return (size - share.rank + share.ranks - 1) // share.ranks

"""What one process reads of a stream that several train on, and where that is in the stream."""

from __future__ import annotations

from towerpack.core import logger
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.parallel.share import Share, by_index, share_of
from towerpack.dataflow.statistics import walk
from towerpack.input_source.position import START, CountedPositions, FlowStream, Mark, Positions


class OwnPart:
    """All of a flow, or what a rank reads of it, from the position `begin` of the stream on.

    `flow` is the one to read. A rank reads only its share if the flow can be read by index;
    otherwise it reads everything, and the stream leaves out what belongs to others.
    """

    def __init__(self, flow: DataFlow, begin: Mark, share: Share | None, endless: bool):
        self.flow, self.positions = flow, Positions(begin)
        self._begin, self._endless = begin, endless
        # A flow that cannot go back receives datapoints of its own on every rank.
        self._share = share if goes_back(flow) else None
        self._ranks = self._share.ranks if self._share else 1
        self._left_out = self._share
        if self._share is not None:
            self._take(self._share)

    def _take(self, share: Share) -> None:
        whole = by_index(self.flow) if self._endless else None
        if whole is not None:
            positions = CountedPositions(self._begin, whole.num_indices())
            own = share_of(self.flow, share, positions.begin)
            if own is not None:
                self.flow, self.positions = own, positions
                self._begin, self._left_out = START, None
                return
        logger.info(
            "each of the %d ranks reads all of %s, which cannot be read by index, and leaves out "
            "what belongs to others; to read only its share, build the flow on a source with "
            "random access, without stages that drop datapoints",
            share.ranks,
            self.flow.label(),
        )

    def stream(self) -> FlowStream:
        return FlowStream(self.flow, self._begin, self._endless, self._left_out)

    def used(self, taken: int) -> int:
        """How many datapoints of its stream the steps have used, after `taken` in this process.

        Of a stream that ranks share, each of them has taken as many.
        """
        return taken * self._ranks

    def place(self, number: int) -> int:
        """Where datapoint `number` of this process is in the stream."""
        return number if self._share is None else int(self._share.place(number))


def goes_back(flow: DataFlow) -> bool:
    """Whether a flow can return to an earlier position; what was received from afar is gone."""
    return not any(stage.external for stage in walk(flow))

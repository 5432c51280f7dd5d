"""How each of several ranks that train together spent an epoch, and which one the others wait for.

A rank that comes late to an exchange finds the others there. So the rank that is slow is the one
whose exchanges take the least time, and what the others' take longer is the time that it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

NOTABLY = 1.15  # times as long as in the other ranks: chance alone does not do that


@dataclass(frozen=True)
class RankTimes:
    """The seconds of one rank's steps: waiting for data, in exchange with the others, computing.

    The exchange is the agreement on each call and the sums of gradients, with all waiting for ranks
    that come late.
    """

    host: str
    data: float
    exchange: float
    step: float


@dataclass(frozen=True)
class Straggler:
    """The rank that the others wait for, the mean seconds that each of them waits, and why."""

    rank: int
    host: str
    seconds: float
    reason: str


def find_straggler(ranks: Sequence[RankTimes], of_chief: float = 0.0) -> Straggler | None:
    """The rank that came last to the exchanges, however little that costs; None for one rank.

    `of_chief` are the chief's seconds in callbacks: they are the reason if the others wait for it.

    >>> fast, slow = RankTimes("a", 0.5, 4, 5.5), RankTimes("b", 0.5, 0.5, 9)
    >>> find_straggler([fast, slow])
    Straggler(rank=1, host='b', seconds=3.5, reason='its steps take 1.6 times as long')
    """
    if len(ranks) < 2:
        return None
    last = min(range(len(ranks)), key=lambda rank: ranks[rank].exchange)
    slow, others = ranks[last], [times for rank, times in enumerate(ranks) if rank != last]
    seconds = fmean(times.exchange for times in others) - slow.exchange
    late = slow.data - fmean(times.data for times in others)
    computing = fmean(times.step for times in others)
    if late > seconds / 2:
        reason = "its data comes late"
    elif last == 0 and of_chief > seconds / 2:
        reason = "it runs callbacks"
    elif slow.step > NOTABLY * computing > 0:
        reason = f"its steps take {slow.step / computing:.1f} times as long"
    else:
        reason = "it comes late to its steps"
    return Straggler(last, slow.host, seconds, reason)

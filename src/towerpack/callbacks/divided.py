"""Work on the batches of a set that several ranks share, as if one process had done all of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from towerpack.callbacks.base import Callback, RanksView
from towerpack.callbacks.batches import FlowBatches, SourceBatches
from towerpack.core import logger
from towerpack.core.codec import decode, encode
from towerpack.dataflow.parallel.share import Share

ROUND_BYTES = 1 << 24  # of all results that travel at once: few collectives, little memory
MOST_RESULTS = 256  # of a rank that travel at once, however small they are
_COUNT = struct.Struct("<q")


def share_of_rank(callback: Callback, batches: FlowBatches | SourceBatches) -> Share | None:
    """The part of a set that this rank evaluates; None if one process evaluates all of it.

    That is the chief, and a set that cannot be shared is logged. Batches go round: batch `i` to
    rank `i % ranks`.
    """
    ranks = callback.trainer.ranks
    if ranks.size == 1 or callback.chief_only:
        return None
    if not batches.divisible():
        logger.info(
            "%s: the chief alone evaluates %s, while the other ranks wait, since they could share "
            "only a flow that can be read by index and drops nothing",
            callback,
            batches.name,
        )
        return None
    return Share(ranks.rank, ranks.size)


def in_order(ranks: RanksView, own: Iterator[list[Any]], what: str) -> Iterator[list[Any]]:
    """On the chief, the results of all ranks in the order of the set; nothing on the others.

    `own` are the results of this rank, lists of arrays, one for each batch of its share. Every rank
    must iterate to the end. They travel in rounds, equally many from each rank; the end is where a
    rank has fewer.
    """
    each = 1
    while True:
        part = [[_packed(value) for value in result] for result in islice(own, each)]
        pieces = ranks.gather(_COUNT.pack(len(part)) + encode(part), what)
        counts = [_COUNT.unpack_from(piece)[0] for piece in pieces]
        check_counts(counts, what)
        if ranks.is_chief:
            parts = [decode(piece[_COUNT.size :]) for piece in pieces]
            for turn in range(max(counts)):
                for results in parts:
                    if turn < len(results):
                        yield [_unpacked(value) for value in results[turn]]
        if min(counts) < each:
            return
        largest = max(len(piece) for piece in pieces) // each
        each = min(MOST_RESULTS, max(1, ROUND_BYTES // (largest * ranks.size)))


def check_counts(counts: Sequence[int], what: str) -> None:
    """Raises an error unless ranks that take batches in turn can have this many of one set."""
    if list(counts) != sorted(counts, reverse=True) or counts[0] - counts[-1] > 1:
        raise RuntimeError(
            f"{what}: expected the same set on all ranks, which take its batches in turn, received "
            f"{list(counts)} batches from them. Give all ranks the same data"
        )


def _packed(value: Any) -> Any:
    """The value as the codec takes it; an array of strings is one of objects."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"shape": list(value.shape), "values": value.ravel().tolist()}
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        array = np.empty(len(value["values"]), object)
        array[:] = value["values"]
        return array.reshape(value["shape"])
    # A view would keep all of a round in memory.
    return value.copy() if isinstance(value, np.ndarray) else value

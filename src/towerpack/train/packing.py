"""Adding up the gradients of all ranks: messages that are neither many nor long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf

CHUNK = 1 << 18  # elements that a rank sends at once; gRPC takes 4 times as long for 25M in one

Sum = Callable[[Sequence[Any], int], Sequence[Any]]
"""Adds up tensors of one dtype over all ranks, packed into messages of that many bytes."""


def packed_sum(
    sum_over_ranks: Sum, ranks: int, values: Sequence[Any], kinds: Sequence[Any]
) -> list[Any]:
    """The sums of `values` over all ranks; those of one kind, a dtype, travel together as such.

    Large ones are cut into parts, of which each rank sends `CHUNK` elements to the next at once.
    `tf.IndexedSlices` travel by themselves.
    """
    groups: dict[Any, list[int]] = {}
    found: dict[int, Any] = {}
    for number, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if isinstance(value, tf.IndexedSlices):
            (found[number],) = sum_over_ranks([value], 0)
        else:
            groups.setdefault(kind, []).append(number)
    longest = CHUNK * ranks
    for kind, members in groups.items():
        flat = [tf.reshape(tf.cast(values[number], kind), [-1]) for number in members]
        cuts = [_lengths(value.shape[0], longest) for value in flat]
        parts = [p for value, cut in zip(flat, cuts, strict=True) for p in tf.split(value, cut)]
        # A message is complete when it is larger than this, as each part of a large tensor is.
        summed = iter(sum_over_ranks(parts, longest * kind.size // 2))
        for number, cut in zip(members, cuts, strict=True):
            value, whole = values[number], tf.concat([next(summed) for _ in cut], 0)
            found[number] = tf.cast(tf.reshape(whole, value.shape), value.dtype)
    return [found[number] for number in range(len(values))]


def _lengths(total: int, longest: int) -> list[int]:
    """The lengths of nearly equal parts, none longer than `longest`.

    >>> _lengths(10, 4)
    [4, 3, 3]
    """
    parts = max(1, -(-total // longest))
    size, longer = divmod(total, parts)
    return [size + 1] * longer + [size] * (parts - longer)


def open_size(inputs: Sequence[Any]) -> Any:
    """The size of the batch where the graph does not know it; None where it does."""
    if not inputs or not inputs[0].shape.rank or inputs[0].shape[0] is not None:
        return None
    return tf.shape(inputs[0])[0]

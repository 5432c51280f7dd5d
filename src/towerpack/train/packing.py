"""Adding up the gradients of all ranks: few large messages instead of many small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf

CHUNK = 1 << 19  # elements: gRPC sends several such parts at once, 3 times as fast as one of 25M

Sum = Callable[[Sequence[Any]], Sequence[Any]]
"""Adds up each of several tensors over all ranks."""


def packed_sum(sum_over_ranks: Sum, values: Sequence[Any], kinds: Sequence[Any]) -> list[Any]:
    """The sums of `values` over all ranks; those of one kind, a dtype, travel together as such.

    They are cut into parts of `CHUNK` elements. `tf.IndexedSlices` travel by themselves.
    """
    groups: dict[Any, list[int]] = {}
    for number, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        sparse = isinstance(value, tf.IndexedSlices)
        groups.setdefault(number if sparse else kind, []).append(number)
    parts: list[Any] = []
    for kind, members in groups.items():
        if isinstance(kind, int):
            parts.append(values[kind])
            continue
        flat = tf.concat([tf.reshape(tf.cast(values[n], kind), [-1]) for n in members], 0)
        parts += tf.split(flat, _lengths(flat.shape[0]))
    summed = iter(sum_over_ranks(parts))
    found: dict[int, Any] = {}
    for kind, members in groups.items():
        if isinstance(kind, int):
            found[kind] = next(summed)
            continue
        sizes = [values[number].shape.num_elements() for number in members]
        flat = tf.concat([next(summed) for _ in _lengths(sum(sizes))], 0)
        for number, piece in zip(members, tf.split(flat, sizes), strict=True):
            value = values[number]
            found[number] = tf.cast(tf.reshape(piece, value.shape), value.dtype)
    return [found[number] for number in range(len(values))]


def _lengths(total: int) -> list[int]:
    """The lengths of nearly equal parts of at most `CHUNK`.

    >>> _lengths(10)
    [10]
    """
    parts = max(1, -(-total // CHUNK))
    size, longer = divmod(total, parts)
    return [size + 1] * longer + [size] * (parts - longer)


def open_size(inputs: Sequence[Any]) -> Any:
    """The size of the batch where the graph does not know it; None where it does."""
    if not inputs or not inputs[0].shape.rank or inputs[0].shape[0] is not None:
        return None
    return tf.shape(inputs[0])[0]

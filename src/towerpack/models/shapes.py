"""Sizes as the layers understand them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf


def sizes(size: Any, count: int) -> list[int]:
    """One number for each of `count` dimensions, from one number or that many.

    >>> sizes(3, 2), sizes((2, 5), 2)
    ([3, 3], [2, 5])
    """
    try:
        if isinstance(size, Sequence) and len(size) == count:
            return [operator.index(item) for item in size]
        if not isinstance(size, Sequence):
            return [operator.index(size)] * count
    except TypeError:
        pass  # not whole numbers: the same error as for a wrong count
    raise ValueError(f"expected a whole number or {count} of them, received {size!r}")


def expect_rank(x: Any, *ranks: int) -> int:
    """The input's rank, or an error that says which ranks the layer takes."""
    if x.shape.rank not in ranks:
        wanted = " or ".join(f"{rank}-D" for rank in ranks)
        raise ValueError(f"expected a {wanted} input, received shape {x.shape}")
    return int(x.shape.rank)


def size_of(x: Any, axis: int) -> Any:
    """The size of an axis: a number where it is known, else a tensor."""
    static = x.shape[axis]
    return tf.shape(x)[axis] if static is None else static


def batch_flatten(x: Any) -> Any:
    """The tensor as [batch, everything else]; the static size is kept where it is known."""
    if x.shape.rank is None:
        raise ValueError(f"the rank of {x} is unknown; declare it in the input's TensorSpec")
    rest = x.shape[1:]
    if rest.is_fully_defined():
        return tf.reshape(x, [-1, rest.num_elements()])
    return tf.reshape(x, [tf.shape(x)[0], -1])

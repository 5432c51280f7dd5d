"""Sizes, ranks, and where the channels are: last (NHWC, the format of CPUs) or first (NCHW)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf

_FORMATS = {
    "NHWC": "channels_last",
    "NCHW": "channels_first",
    "channels_last": "channels_last",
    "channels_first": "channels_first",
}
_LETTERS = {3: "W", 4: "HW", 5: "DHW"}


def sizes(size: Any, count: int) -> list[int]:
    """A number for each of `count` dimensions, from one number for all or a sequence.

    >>> sizes(3, 2), sizes((2, 5), 2)
    ([3, 3], [2, 5])
    """
    try:
        if isinstance(size, Sequence) and len(size) == count:
            return [operator.index(item) for item in size]
        if not isinstance(size, Sequence):
            return [operator.index(size)] * count
    except TypeError:
        pass  # not integers: the same error as for a wrong count
    raise ValueError(f"expected an integer or {count} of them, received {size!r}")


def expect_rank(x: Any, *ranks: int) -> int:
    """The input's rank. Raises an error if the layer does not take that rank."""
    if x.shape.rank not in ranks:
        wanted = " or ".join(f"{rank}-D" for rank in ranks)
        raise ValueError(f"expected a {wanted} input, received shape {x.shape}")
    return int(x.shape.rank)


def size_of(x: Any, axis: int) -> Any:
    """The size of an axis: a number if it is known, otherwise a tensor."""
    static = x.shape[axis]
    return tf.shape(x)[axis] if static is None else static


def batch_flatten(x: Any) -> Any:
    """Reshapes the tensor to [batch, everything else], with a static size if it is known."""
    if x.shape.rank is None:
        raise ValueError(f"the rank of {x} is unknown; declare it in the input's TensorSpec")
    rest = x.shape[1:]
    if rest.is_fully_defined():
        return tf.reshape(x, [-1, rest.num_elements()])
    return tf.reshape(x, [tf.shape(x)[0], -1])


def checked_padding(padding: str) -> str:
    """'SAME' or 'VALID' from any spelling."""
    name = str(padding).upper()
    if name not in ("SAME", "VALID"):
        raise ValueError(f"expected 'same' or 'valid' as padding, received {padding!r}")
    return name


def get_data_format(data_format: str) -> str:
    """'channels_last' or 'channels_first' from either spelling.

    >>> get_data_format("NCHW")
    'channels_first'
    """
    try:
        return _FORMATS[data_format]
    except KeyError:
        raise ValueError(
            f"expected a data_format of {sorted(_FORMATS)}, received {data_format!r}"
        ) from None


def channels_are_last(data_format: str) -> bool:
    return get_data_format(data_format) == "channels_last"


def tf_data_format(data_format: str, rank: int) -> str:
    """TensorFlow's name of the format for inputs of that rank.

    >>> tf_data_format("channels_last", 3), tf_data_format("NCHW", 5)
    ('NWC', 'NCDHW')
    """
    letters = _LETTERS[rank]
    return f"N{letters}C" if channels_are_last(data_format) else f"NC{letters}"


def channel_axis(rank: int, data_format: str) -> int:
    return rank - 1 if channels_are_last(data_format) else 1


def spatial_axes(rank: int, data_format: str) -> list[int]:
    """All axes except those of the batch and of the channels."""
    return list(range(1, rank - 1) if channels_are_last(data_format) else range(2, rank))


def channels_of(x: Any, data_format: str = "channels_last") -> int:
    """The number of channels, which must be known while the tower is built."""
    size = x.shape[channel_axis(x.shape.rank, data_format)]
    if size is None:
        raise ValueError(
            f"the number of channels of {x} is unknown; declare it in the input's TensorSpec"
        )
    return int(size)


def per_channel(vector: Any, rank: int, data_format: str) -> Any:
    """A vector of one number per channel, shaped to broadcast over a tensor of that rank."""
    if channels_are_last(data_format):
        return vector
    return tf.reshape(vector, [-1] + [1] * (rank - 2))


@functools.cache
def has_gpu() -> bool:
    """Whether TensorFlow may place operations on a GPU here."""
    return bool(tf.config.list_physical_devices("GPU"))


def in_fast_format(op: Callable[[Any, str], Any], x: Any, data_format: str) -> Any:
    """Calls `op(x, data_format)`, with the channels last unless there is a GPU.

    Many kernels for CPUs support only one format. With the transposition, a model that was written
    for NCHW runs everywhere.
    """
    if has_gpu():
        return op(x, get_data_format(data_format))
    return with_channels_last(lambda image: op(image, "channels_last"), x, data_format)


def with_channels_last(op: Callable[[Any], Any], x: Any, data_format: str) -> Any:
    """Calls `op(x)`; transposes the input to channels last and the output back if necessary."""
    if channels_are_last(data_format):
        return op(x)
    rank = x.shape.rank
    output = op(tf.transpose(x, [0, *range(2, rank), 1]))
    rank = output.shape.rank
    return tf.transpose(output, [0, rank - 1, *range(1, rank - 1)])

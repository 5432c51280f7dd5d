"""Where the channels are: last (NHWC, what CPUs compute) or first (NCHW)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf

_FORMATS = {
    "NHWC": "channels_last",
    "NCHW": "channels_first",
    "channels_last": "channels_last",
    "channels_first": "channels_first",
}
_LETTERS = {3: "W", 4: "HW", 5: "DHW"}


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
    """TensorFlow's name for inputs of that rank.

    >>> tf_data_format("channels_last", 3), tf_data_format("NCHW", 5)
    ('NWC', 'NCDHW')
    """
    letters = _LETTERS[rank]
    return f"N{letters}C" if channels_are_last(data_format) else f"NC{letters}"


def channel_axis(rank: int, data_format: str) -> int:
    return rank - 1 if channels_are_last(data_format) else 1


def spatial_axes(rank: int, data_format: str) -> list[int]:
    """All axes but the batch's and the channels'."""
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
    """A vector of one number per channel, shaped to be broadcast over a tensor of that rank."""
    if channels_are_last(data_format):
        return vector
    return tf.reshape(vector, [-1] + [1] * (rank - 2))


@functools.cache
def has_gpu() -> bool:
    """Whether TensorFlow may place operations on a GPU here."""
    return bool(tf.config.list_physical_devices("GPU"))


def in_fast_format(op: Callable[[Any, str], Any], x: Any, data_format: str) -> Any:
    """Calls `op(x, data_format)`, with the channels last where the processor wants them so.

    Without a GPU many kernels exist for one format only: then the input is transposed to channels
    last and the output back, so that a model written for NCHW runs everywhere.
    """
    if channels_are_last(data_format) or has_gpu():
        return op(x, get_data_format(data_format))
    return to_channels_first(op(to_channels_last(x), "channels_last"))


def to_channels_last(x: Any) -> Any:
    rank = x.shape.rank
    return tf.transpose(x, [0, *range(2, rank), 1])


def to_channels_first(x: Any) -> Any:
    rank = x.shape.rank
    return tf.transpose(x, [0, rank - 1, *range(1, rank - 1)])

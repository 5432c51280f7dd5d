"""Sizes and data formats as the layers understand them."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf

_FORMATS = {
    "NHWC": "channels_last",
    "NCHW": "channels_first",
    "channels_last": "channels_last",
    "channels_first": "channels_first",
}


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


def tf_data_format(data_format: str) -> str:
    return "NHWC" if get_data_format(data_format) == "channels_last" else "NCHW"


def shape2d(size: Any) -> list[int]:
    """Height and width from one number or two.

    >>> shape2d(3), shape2d((2, 5))
    ([3, 3], [2, 5])
    """
    if isinstance(size, int):
        return [size, size]
    if isinstance(size, list | tuple) and len(size) == 2:
        return [int(x) for x in size]
    raise ValueError(f"expected a number or two of them, received {size!r}")


def shape4d(size: Any, data_format: str = "channels_last") -> list[int]:
    """The size as TensorFlow's ops want it, with ones for batch and channel."""
    height, width = shape2d(size)
    if get_data_format(data_format) == "channels_last":
        return [1, height, width, 1]
    return [1, 1, height, width]


def channels_of(x: Any, data_format: str) -> int:
    axis = -1 if get_data_format(data_format) == "channels_last" else 1
    size = x.shape[axis]
    if size is None:
        raise ValueError(
            f"the number of channels of {x} is unknown; declare it in the input's TensorSpec"
        )
    return int(size)


def batch_flatten(x: Any) -> Any:
    """The tensor as [batch, everything else]; the static size is kept where it is known."""
    if x.shape.rank is None:
        raise ValueError(f"the rank of {x} is unknown; declare it in the input's TensorSpec")
    rest = x.shape[1:]
    if rest.is_fully_defined():
        return tf.reshape(x, [-1, rest.num_elements()])
    return tf.reshape(x, [tf.shape(x)[0], -1])

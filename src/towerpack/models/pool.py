"""Pooling over windows and over the whole image."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.registry import layer_register
from towerpack.models.shapes import get_data_format, shape2d, tf_data_format

OLD_POOL_NAMES = {"shape": "pool_size", "stride": "strides"}


def _pool(x: Any, kind: str, pool_size: Any, strides: Any, padding: str, data_format: str) -> Any:
    return tf.nn.pool(
        x,
        window_shape=shape2d(pool_size),
        pooling_type=kind,
        strides=shape2d(pool_size if strides is None else strides),
        padding=padding.upper(),
        data_format=tf_data_format(data_format),
    )


@layer_register(log_shape=True, renamed=OLD_POOL_NAMES)
def MaxPooling(
    x: Any,
    pool_size: int | tuple[int, int],
    strides: int | tuple[int, int] | None = None,
    *,
    padding: str = "valid",
    data_format: str = "channels_last",
) -> Any:
    """The maximum of each window; `strides` defaults to the window's size."""
    return _pool(x, "MAX", pool_size, strides, padding, data_format)


@layer_register(log_shape=True, renamed=OLD_POOL_NAMES)
def AvgPooling(
    x: Any,
    pool_size: int | tuple[int, int],
    strides: int | tuple[int, int] | None = None,
    *,
    padding: str = "valid",
    data_format: str = "channels_last",
) -> Any:
    """The mean of each window; `strides` defaults to the window's size."""
    return _pool(x, "AVG", pool_size, strides, padding, data_format)


@layer_register(log_shape=True)
def GlobalAvgPooling(x: Any, *, data_format: str = "channels_last") -> Any:
    """The mean over height and width: [batch, channels]."""
    if x.shape.rank != 4:
        raise ValueError(f"expected a 4-D input, received shape {x.shape}")
    return tf.reduce_mean(x, [1, 2] if get_data_format(data_format) == "channels_last" else [2, 3])

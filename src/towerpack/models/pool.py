"""Pooling over windows and over the whole image."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.convolution import checked_padding
from towerpack.models.data_format import in_fast_format, spatial_axes, tf_data_format
from towerpack.models.registry import layer_register
from towerpack.models.shapes import expect_rank, sizes

OLD_POOL_NAMES = {"shape": "pool_size", "stride": "strides"}


def _pool(x: Any, kind: str, pool_size: Any, strides: Any, padding: str, data_format: str) -> Any:
    expect_rank(x, 4)

    def pool(inputs: Any, layout: str) -> Any:
        return tf.nn.pool(
            inputs,
            window_shape=sizes(pool_size, 2),
            pooling_type=kind,
            strides=sizes(pool_size if strides is None else strides, 2),
            padding=checked_padding(padding),
            data_format=tf_data_format(layout, 4),
        )

    return in_fast_format(pool, x, data_format)


@layer_register(log_shape=True, renamed=OLD_POOL_NAMES)
def MaxPooling(
    x: Any,
    pool_size: int | tuple[int, int],
    strides: int | tuple[int, int] | None = None,
    *,
    padding: str = "valid",
    data_format: str = "channels_last",
) -> Any:
    """The maximum of each window of a 4-D input; `strides` defaults to the window's size."""
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
    """The mean of each window of a 4-D input; `strides` defaults to the window's size.

    With 'same' padding, the part of a window that lies outside does not count.
    """
    return _pool(x, "AVG", pool_size, strides, padding, data_format)


@layer_register(log_shape=True)
def GlobalAvgPooling(x: Any, *, data_format: str = "channels_last") -> Any:
    """The mean over height and width: [batch, channels]."""
    return tf.reduce_mean(x, spatial_axes(expect_rank(x, 4), data_format))


@layer_register(log_shape=True)
def GlobalMaxPooling(x: Any, *, data_format: str = "channels_last") -> Any:
    """The maximum over height and width: [batch, channels]."""
    return tf.reduce_max(x, spatial_axes(expect_rank(x, 4), data_format))

"""Norms within each datapoint: over all of it, or over parts of its channels."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.affine import OLD_NORM_NAMES, Affine
from towerpack.models.data_format import (
    channel_axis,
    channels_of,
    get_data_format,
    spatial_axes,
)
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import expect_rank, size_of

RANKS = (2, 3, 4, 5)


@layer_register(renamed=OLD_NORM_NAMES)
def LayerNorm(
    x: Any,
    *,
    axis: int | list[int] | None = None,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    data_format: str = "channels_last",
) -> Any:
    """Normalizes each datapoint over all its axes, or over `axis`; scale and shift per channel.

    Variables `beta` and `gamma`, float32 as the statistics are. Sequences are usually normalized
    over their features only: `axis=-1`.

        x = LayerNorm("ln", x)
    """
    rank, layout = _rank_and_layout(x, data_format)
    affine = Affine(channels_of(x, layout), center, scale, beta_initializer, gamma_initializer)
    axes = list(range(1, rank)) if axis is None else axis
    return _normalized(x, axes, affine, epsilon, layout)


@layer_register(renamed=OLD_NORM_NAMES)
def InstanceNorm(
    x: Any,
    *,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    data_format: str = "channels_last",
) -> Any:
    """Normalizes each channel of each image by itself; 4-D inputs, variables as in `LayerNorm`."""
    expect_rank(x, 4)
    layout = get_data_format(data_format)
    affine = Affine(channels_of(x, layout), center, scale, beta_initializer, gamma_initializer)
    return _normalized(x, spatial_axes(4, layout), affine, epsilon, layout)


@layer_register(renamed={**OLD_NORM_NAMES, "group": "groups"})
def GroupNorm(
    x: Any,
    groups: int = 32,
    *,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    data_format: str = "channels_last",
) -> Any:
    """Normalizes each datapoint over groups of channels; variables as in `LayerNorm`.

    x = GroupNorm("gn", x, groups=8)
    """
    rank, layout = _rank_and_layout(x, data_format)
    channels = channels_of(x, layout)
    if channels % groups:
        raise ValueError(f"groups={groups} must divide the number of channels, which is {channels}")
    affine = Affine(channels, center, scale, beta_initializer, gamma_initializer)
    # One more axis, after the group's: the channels within it.
    at = channel_axis(rank, layout)
    shape = [size_of(x, axis) for axis in range(rank)]
    shape[at : at + 1] = [groups, channels // groups]
    grouped = tf.cast(tf.reshape(x, shape), tf.float32)
    axes = [axis for axis in range(1, rank + 1) if axis != at]
    mean, variance = tf.nn.moments(grouped, axes, keepdims=True)
    normal = (grouped - mean) * tf.math.rsqrt(variance + epsilon)
    normal = tf.ensure_shape(tf.reshape(normal, tf.shape(x)), x.shape)
    return affine.apply(normal, x.dtype, layout)


@layer_register(renamed={"use_scale": "scale", "gamma_init": "gamma_initializer"})
def RMSNorm(
    x: Any, *, epsilon: float = 1e-6, scale: bool = True, gamma_initializer: Any = None
) -> Any:
    """Divides the last axis by its root mean square, without a mean; variable `gamma`, float32.

    x = RMSNorm("norm", x)
    """
    values = tf.cast(x, tf.float32)
    output = values * tf.math.rsqrt(tf.reduce_mean(tf.square(values), -1, keepdims=True) + epsilon)
    variables = VariableHolder()
    if scale:
        variables.gamma = v1.get_variable(
            "gamma",
            [channels_of(x)],
            dtype=tf.float32,
            initializer=gamma_initializer or v1.ones_initializer(),
        )
        output *= variables.gamma
    output = tf.cast(output, x.dtype)
    output.variables = variables
    return output


def _rank_and_layout(x: Any, data_format: str) -> tuple[int, str]:
    rank = expect_rank(x, *RANKS)
    return rank, "channels_last" if rank == 2 else get_data_format(data_format)


def _normalized(x: Any, axes: Any, affine: Affine, epsilon: float, layout: str) -> Any:
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), axes, keepdims=True)
    return affine.normalize(x, mean, variance, epsilon, layout)

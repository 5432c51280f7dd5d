"""Larger images: each pixel spread out, interpolated, or taken from the channels."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.data_format import (
    channels_are_last,
    channels_of,
    to_channels_first,
    to_channels_last,
)
from towerpack.models.registry import layer_register
from towerpack.models.shapes import expect_rank, size_of, sizes


@layer_register(log_shape=True)
def FixedUnPooling(
    x: Any,
    shape: int | tuple[int, int],
    unpool_mat: Any = None,
    *,
    data_format: str = "channels_last",
) -> Any:
    """Replaces each pixel by itself times a fixed matrix of that shape (a Kronecker product).

    The default matrix has a one at the top left and zeros elsewhere.

        x = FixedUnPooling("unpool0", x, 2)
    """
    expect_rank(x, 4)
    height, width = sizes(shape, 2)
    if unpool_mat is None:
        matrix = tf.one_hot(0, height * width, dtype=x.dtype)
    else:
        matrix = tf.cast(unpool_mat, x.dtype)
        if not matrix.shape.is_compatible_with([height, width]):
            raise ValueError(
                f"expected an unpool_mat of shape {[height, width]}, received {matrix.shape}"
            )
    matrix = tf.reshape(matrix, [1, 1, height, 1, width, 1])

    def spread(image: Any) -> Any:
        pixels = image[:, :, tf.newaxis, :, tf.newaxis, :]
        rows, columns = size_of(image, 1) * height, size_of(image, 2) * width
        return tf.reshape(pixels * matrix, [-1, rows, columns, image.shape[3]])

    return _on_channels_last(spread, x, data_format)


@layer_register(log_shape=True)
def UpSampling(
    x: Any,
    size: int | tuple[int, int] = 2,
    *,
    interpolation: str = "nearest",
    data_format: str = "channels_last",
) -> Any:
    """Enlarges a 4-D input by whole factors; `interpolation` is 'nearest' or 'bilinear'.

    x = UpSampling("up0", x, 2)
    """
    expect_rank(x, 4)
    if interpolation not in ("nearest", "bilinear"):
        raise ValueError(f"expected 'nearest' or 'bilinear', received {interpolation!r}")
    height, width = sizes(size, 2)

    def enlarge(image: Any) -> Any:
        target = [size_of(image, 1) * height, size_of(image, 2) * width]
        # Bilinear resizing computes in float32 whatever it is given.
        return tf.cast(tf.image.resize(image, target, interpolation), x.dtype)

    return _on_channels_last(enlarge, x, data_format)


@layer_register(log_shape=True)
def PixelShuffle(x: Any, scale: int = 2, *, data_format: str = "channels_last") -> Any:
    """Turns `scale` ** 2 channels into as many pixels, in the order of `tf.nn.depth_to_space`.

    x = PixelShuffle("up0", Conv2D("c", x, 4 * 16, 3), 2)
    """
    expect_rank(x, 4)
    channels = channels_of(x, data_format)
    if channels % scale**2:
        raise ValueError(
            f"scale={scale} needs channels in multiples of {scale**2}, received {channels}"
        )
    return _on_channels_last(lambda image: tf.nn.depth_to_space(image, scale), x, data_format)


def _on_channels_last(func: Any, x: Any, data_format: str) -> Any:
    """These operations know one format on every device."""
    if channels_are_last(data_format):
        return func(x)
    return to_channels_first(func(to_channels_last(x)))

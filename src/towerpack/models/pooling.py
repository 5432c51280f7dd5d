"""Smaller and larger images: pooling, unpooling and upsampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.registry import layer_named, layer_register
from towerpack.models.shapes import (
    channels_of,
    checked_padding,
    expect_rank,
    in_fast_format,
    size_of,
    sizes,
    spatial_axes,
    tf_data_format,
    with_channels_last,
)


def _pooling(name: str, kind: str, doc: str) -> Callable[..., Any]:
    @layer_named(name, doc, log_shape=True)
    def layer(
        x: Any,
        pool_size: int | tuple[int, int],
        strides: int | tuple[int, int] | None = None,
        *,
        padding: str = "valid",
        data_format: str = "channels_last",
    ) -> Any:
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

    return layer


MaxPooling = _pooling(
    "MaxPooling",
    "MAX",
    """The maximum of each window of a 4-D input; `strides` defaults to the window's size.""",
)
AvgPooling = _pooling(
    "AvgPooling",
    "AVG",
    """The mean of each window of a 4-D input; `strides` defaults to the window's size.

    With 'same' padding, the part of a window that lies outside the image does not count.
    """,
)


@layer_register(log_shape=True)
def GlobalAvgPooling(x: Any, *, data_format: str = "channels_last") -> Any:
    """The mean over height and width: [batch, channels]."""
    return tf.reduce_mean(x, spatial_axes(expect_rank(x, 4), data_format))


@layer_register(log_shape=True)
def GlobalMaxPooling(x: Any, *, data_format: str = "channels_last") -> Any:
    """The maximum over height and width: [batch, channels]."""
    return tf.reduce_max(x, spatial_axes(expect_rank(x, 4), data_format))


@layer_register(log_shape=True)
def FixedUnPooling(
    x: Any,
    shape: int | tuple[int, int],
    unpool_mat: Any = None,
    *,
    data_format: str = "channels_last",
) -> Any:
    """Replaces each pixel by its product with a fixed matrix of that shape (a Kronecker product).

    The default matrix is one at the top left and zero elsewhere.

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

    return with_channels_last(spread, x, data_format)


@layer_register(log_shape=True)
def UpSampling(
    x: Any,
    size: int | tuple[int, int] = 2,
    *,
    interpolation: str = "nearest",
    data_format: str = "channels_last",
) -> Any:
    """Enlarges a 4-D input by integer factors; `interpolation` is 'nearest' or 'bilinear'.

    x = UpSampling("up0", x, 2)
    """
    expect_rank(x, 4)
    if interpolation not in ("nearest", "bilinear"):
        raise ValueError(f"expected 'nearest' or 'bilinear', received {interpolation!r}")
    height, width = sizes(size, 2)

    def enlarge(image: Any) -> Any:
        target = [size_of(image, 1) * height, size_of(image, 2) * width]
        # Bilinear resizing returns float32 for every type of input.
        return tf.cast(tf.image.resize(image, target, interpolation), x.dtype)

    return with_channels_last(enlarge, x, data_format)


@layer_register(log_shape=True)
def PixelShuffle(x: Any, scale: int = 2, *, data_format: str = "channels_last") -> Any:
    """Turns groups of `scale` ** 2 channels into pixels, in the order of `tf.nn.depth_to_space`.

    x = PixelShuffle("up0", Conv2D("c", x, 4 * 16, 3), 2)
    """
    expect_rank(x, 4)
    channels = channels_of(x, data_format)
    if channels % scale**2:
        raise ValueError(
            f"scale={scale} needs channels in multiples of {scale**2}, received {channels}"
        )
    return with_channels_last(lambda image: tf.nn.depth_to_space(image, scale), x, data_format)

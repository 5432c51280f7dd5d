"""Batch normalization."""

from __future__ import annotations

from typing import Any, NamedTuple

from towerpack._tensorflow import tf, v1
from towerpack.models.affine import OLD_NORM_NAMES, Affine
from towerpack.models.data_format import (
    channel_axis,
    channels_of,
    get_data_format,
    per_channel,
    tf_data_format,
)
from towerpack.models.layer_state import checked_mode, moved, state_variable, update_state
from towerpack.models.phase import in_training, replicas
from towerpack.models.registry import layer_register
from towerpack.models.shapes import expect_rank, size_of
from towerpack.tower import get_current_tower_context

OLD_BATCH_NORM_NAMES = {**OLD_NORM_NAMES, "use_local_stat": "training", "decay": "momentum"}
RANKS = (2, 3, 4, 5)


class Population(NamedTuple):
    """An estimate of each channel's mean and variance over all data: what inference will use."""

    mean: Any
    variance: Any


class Moments(NamedTuple):
    """Mean and variance of each channel, and over how many elements they were taken."""

    mean: Any
    variance: Any
    count: Any

    def population(self) -> Population:
        """With the unbiased variance, as TensorFlow's and cuDNN's fused kernels have it."""
        return Population(self.mean, self.variance * self.count / tf.maximum(self.count - 1, 1))


@layer_register(renamed=OLD_BATCH_NORM_NAMES)
def BatchNorm(
    x: Any,
    *,
    axis: int | None = None,
    training: bool | None = None,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    virtual_batch_size: int | None = None,
    data_format: str = "channels_last",
    ema_update: str = "default",
    sync_statistics: bool | str | None = None,
) -> Any:
    """Normalizes each channel over the batch in training, by moving averages in inference.

    Variables `beta`, `gamma`, `mean/EMA`, `variance/EMA`, all float32; statistics are computed in
    float32 too. `training` defaults to what the tower is for; False in a training tower gives a
    frozen layer. The moving averages follow the first training tower, with the unbiased variance:

    - `ema_update='default'`: they are updated when the training step runs;
    - 'internal': whenever the output is computed, for instance in a branch or a GAN's inner step;
    - 'skip': never.

    `virtual_batch_size` normalizes parts of the batch of that size apart (ghost batch norm); the
    moving averages get the mean of the parts' statistics. `sync_statistics=True` (old scripts:
    'nccl', 'horovod') takes the statistics over the batches of all towers. `axis` is that of the
    channels, an alternative to `data_format`.

        x = BatchNorm("bn", x)
    """
    rank = expect_rank(x, *RANKS)
    layout = _layout(axis, data_format, rank)
    channels = channels_of(x, layout)
    checked_mode(ema_update)
    if virtual_batch_size is not None and sync_statistics:
        raise ValueError("virtual_batch_size makes batches smaller, sync_statistics larger: choose")
    affine = Affine(channels, center, scale, beta_initializer, gamma_initializer)
    mean = state_variable("mean/EMA", [channels], v1.zeros_initializer())
    variance = state_variable("variance/EMA", [channels], v1.ones_initializer())
    affine.variables.mean, affine.variables.variance = mean, variance

    if not in_training(training):
        output = _by_averages(x, affine, mean, variance, epsilon, layout)
    else:
        if virtual_batch_size is not None:
            output, now = _by_parts(x, affine, virtual_batch_size, epsilon, layout)
        elif sync_statistics and _must_synchronize():
            output, now = _by_moments(x, affine, synchronized(x, layout), epsilon, layout)
        elif _has_fused_kernel(x):
            output, now = _by_fused_kernel(x, affine, epsilon, layout)
        else:
            output, now = _by_moments(x, affine, batch_moments(x, layout), epsilon, layout)
        updates = [moved(mean, now.mean, momentum), moved(variance, now.variance, momentum)]
        output = update_state(output, updates, ema_update)
    output.variables = affine.variables
    return output


def _layout(axis: int | None, data_format: str, rank: int) -> str:
    if rank == 2:
        return "channels_last"
    if axis is None:
        return get_data_format(data_format)
    if axis % rank == 1:
        return "channels_first"
    if axis % rank == rank - 1:
        return "channels_last"
    raise ValueError(f"expected axis 1 or -1, received {axis} for an input of rank {rank}")


def _has_fused_kernel(x: Any) -> bool:
    return x.shape.rank == 4 and x.dtype in (tf.float32, tf.float16, tf.bfloat16)


def _by_averages(
    x: Any, affine: Affine, mean: Any, variance: Any, epsilon: float, layout: str
) -> Any:
    if _has_fused_kernel(x):
        return v1.nn.fused_batch_norm(
            x,
            affine.gamma,
            affine.beta,
            tf.convert_to_tensor(mean),
            tf.convert_to_tensor(variance),
            epsilon,
            tf_data_format(layout, 4),
            is_training=False,
        )[0]
    rank = x.shape.rank
    mean, variance = (per_channel(tf.convert_to_tensor(v), rank, layout) for v in (mean, variance))
    return affine.normalize(x, mean, variance, epsilon, layout)


def _by_fused_kernel(x: Any, affine: Affine, epsilon: float, layout: str) -> tuple[Any, Population]:
    output, mean, variance = v1.nn.fused_batch_norm(
        x,
        affine.gamma,
        affine.beta,
        epsilon=epsilon,
        data_format=tf_data_format(layout, 4),
        is_training=True,
    )
    return output, Population(mean, variance)


def _by_moments(
    x: Any, affine: Affine, moments: Moments, epsilon: float, layout: str
) -> tuple[Any, Population]:
    rank = x.shape.rank
    mean = per_channel(moments.mean, rank, layout)
    variance = per_channel(moments.variance, rank, layout)
    return affine.normalize(x, mean, variance, epsilon, layout), moments.population()


def _by_parts(
    x: Any, affine: Affine, size: int, epsilon: float, layout: str
) -> tuple[Any, Population]:
    """Ghost batch norm: the batch as [parts, size, ...], each part with its own statistics."""
    if x.shape[0] is not None and x.shape[0] % size:
        raise ValueError(
            f"virtual_batch_size={size} must divide the batch, which has {x.shape[0]} datapoints"
        )
    rest = [size_of(x, axis) for axis in range(1, x.shape.rank)]
    parts = tf.cast(tf.reshape(x, [-1, size, *rest]), tf.float32)
    channels = channel_axis(x.shape.rank, layout) + 1
    axes = [axis for axis in range(1, x.shape.rank + 1) if axis != channels]
    mean, variance = tf.nn.moments(parts, axes, keepdims=True)
    normal = (parts - mean) * tf.math.rsqrt(variance + epsilon)
    normal = tf.ensure_shape(tf.reshape(normal, tf.shape(x)), x.shape)
    count = tf.cast(tf.size(parts), tf.float32) / tf.cast(tf.size(mean), tf.float32)
    kept = [tf.reduce_mean(tf.reshape(v, [-1, affine.channels]), 0) for v in (mean, variance)]
    return affine.apply(normal, x.dtype, layout), Moments(kept[0], kept[1], count).population()


def batch_moments(x: Any, layout: str) -> Moments:
    """The moments of this tower's batch, in float32."""
    channels = channel_axis(x.shape.rank, layout)
    axes = [axis for axis in range(x.shape.rank) if axis != channels]
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), axes)
    return Moments(mean, variance, tf.cast(tf.size(x), tf.float32) / mean.shape[0])


def synchronized(x: Any, layout: str) -> Moments:
    """The moments over the batches of all replicas; gradients flow through to each of them."""
    own = batch_moments(x, layout)
    replica, add = tf.distribute.get_replica_context(), tf.distribute.ReduceOp.SUM
    # Sums, so that replicas with fewer datapoints count for less.
    total, count = replica.all_reduce(add, [own.mean * own.count, own.count])
    mean = total / count
    # A second reduction: E[x^2] - E[x]^2 in one would cancel where the mean is large.
    squares = replica.all_reduce(add, (own.variance + tf.square(own.mean - mean)) * own.count)
    return Moments(mean, squares / count, count)


def _must_synchronize() -> bool:
    if replicas() > 1:
        return True
    context = get_current_tower_context()
    if context and context.is_training and context.total > 1 and not context.probing:
        raise ValueError(
            "sync_statistics needs towers that run together under tf.distribute; this trainer "
            f"runs its {context.total} towers apart. Use SyncMultiGPUTrainerReplicated"
        )
    return False

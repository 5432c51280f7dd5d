"""Norms: over the batch, within each datapoint, and of a layer's kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.registry import layer_register
from towerpack.models.shapes import (
    channel_axis,
    channels_of,
    expect_rank,
    get_data_format,
    per_channel,
    size_of,
    spatial_axes,
    tf_data_format,
)
from towerpack.models.variables import VariableHolder, in_training, state_variable, update_state
from towerpack.tower import get_current_tower_context

RANKS = (2, 3, 4, 5)
EMA_MODES = ("default", "collection", "internal", "skip")
_SMALLEST_NORM = 1e-12  # added to the norm of a vector before dividing by it


class _Affine:
    """The last part of a norm: one scale `gamma` and one shift `beta` per channel, both optional.

    The variables are float32, as the statistics of norms are.
    """

    def __init__(
        self,
        x: Any,
        data_format: str,
        center: bool,
        scale: bool,
        beta_initializer: Any,
        gamma_initializer: Any,
    ):
        self.rank = expect_rank(x, *RANKS)
        self.layout = "channels_last" if self.rank == 2 else get_data_format(data_format)
        self.channels, self.variables = channels_of(x, self.layout), VariableHolder()
        if center:
            self.variables.beta = _vector("beta", self.channels, beta_initializer, 0.0)
        if scale:
            self.variables.gamma = _vector("gamma", self.channels, gamma_initializer, 1.0)

    @property
    def beta(self) -> Any:
        """The shift, or zeros."""
        return vars(self.variables).get("beta", tf.zeros([self.channels]))

    @property
    def gamma(self) -> Any:
        """The scale, or ones."""
        return vars(self.variables).get("gamma", tf.ones([self.channels]))

    def apply(self, centered: Any, factor: Any, dtype: Any) -> Any:
        """Returns centered * factor * gamma + beta, computed in float32, as `dtype`."""
        if "gamma" in vars(self.variables):
            factor = factor * self.shaped(self.variables.gamma)
        output = centered * factor
        if "beta" in vars(self.variables):
            output += self.shaped(self.variables.beta)
        output = tf.cast(output, dtype)
        output.variables = self.variables
        return output

    def normalize(self, x: Any, mean: Any, variance: Any, epsilon: float) -> Any:
        """Normalizes by moments per channel, or of the rank of `x`; then scales and shifts."""
        # The mean is subtracted first: if it is large, x * factor loses the digits that matter.
        centered = tf.cast(x, tf.float32) - self.shaped(mean)
        return self.apply(centered, tf.math.rsqrt(self.shaped(variance) + epsilon), x.dtype)

    def shaped(self, values: Any) -> Any:
        """A vector of one number per channel, shaped to broadcast over the input."""
        return per_channel(values, self.rank, self.layout) if len(values.shape) == 1 else values


def _vector(name: str, channels: int, initializer: Any, default: float) -> Any:
    return v1.get_variable(
        name, [channels], tf.float32, initializer or v1.constant_initializer(default)
    )


class _Averages:
    """The moving averages of a batch norm: `mean/EMA` and `variance/EMA`."""

    def __init__(self, affine: _Affine, momentum: float, mode: str):
        if mode not in EMA_MODES:
            raise ValueError(f"expected ema_update to be one of {EMA_MODES}, received {mode!r}")
        self.affine, self.momentum, self.mode = affine, momentum, mode
        shape = [affine.channels]
        self.mean = state_variable("mean/EMA", shape, v1.zeros_initializer())
        self.variance = state_variable("variance/EMA", shape, v1.ones_initializer())
        affine.variables.mean, affine.variables.variance = self.mean, self.variance

    def values(self) -> tuple[Any, Any]:
        return tf.convert_to_tensor(self.mean), tf.convert_to_tensor(self.variance)

    def normalize(self, x: Any, epsilon: float) -> Any:
        """The output for inference: normalized by the averages."""
        mean, variance = self.values()
        if _has_fused_kernel(x):
            options = {"mean": mean, "variance": variance, "is_training": False}
            output, _, _ = _fused(x, self.affine, epsilon, **options)
        else:
            output = self.affine.normalize(x, mean, variance, epsilon)
        output.variables = self.affine.variables
        return output

    def updated(self, output: Any, mean: Any, variance: Any) -> Any:
        """Returns the output, and moves the averages towards these values along with the step."""

        def moved(average: Any, value: Any) -> tuple[Any, Any]:
            return average, average - (1 - self.momentum) * (average - tf.stop_gradient(value))

        assignments = [moved(self.mean, mean), moved(self.variance, variance)]
        output = update_state(output, assignments, self.mode)
        output.variables = self.affine.variables
        return output


@layer_register(log_shape=True)
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

    Variables `beta`, `gamma`, `mean/EMA`, `variance/EMA`, all float32; the statistics are computed
    in float32 as well. `training` defaults to the purpose of the tower; False in a training tower
    freezes the layer. The moving averages follow the first training tower, with the unbiased
    variance:

    - `ema_update='default'`: they are updated when the training step runs;
    - 'internal': whenever the output is computed, for instance in a branch or a GAN's inner step;
    - 'skip': never.

    `virtual_batch_size` divides the batch into parts of that size and normalizes each separately
    (ghost batch norm); the moving averages follow the mean of the parts' statistics.
    `sync_statistics=True` (or 'nccl', 'horovod', with the same effect) computes the statistics over
    the batches of all towers. `axis` is the axis of the channels, an alternative to `data_format`.

        x = BatchNorm("bn", x)
    """
    if virtual_batch_size is not None and sync_statistics:
        raise ValueError(
            "virtual_batch_size makes batches smaller and sync_statistics makes them larger: "
            "use one of them"
        )
    data_format = _format_of(axis, expect_rank(x, *RANKS), data_format)
    affine = _Affine(x, data_format, center, scale, beta_initializer, gamma_initializer)
    averages = _Averages(affine, momentum, ema_update)
    if not in_training(training):
        return averages.normalize(x, epsilon)
    synchronize = sync_statistics and _must_synchronize()
    if virtual_batch_size is not None:
        output, mean, variance = _by_parts(x, affine, virtual_batch_size, epsilon)
    elif _has_fused_kernel(x) and not synchronize:
        output, mean, variance = _fused(x, affine, epsilon, is_training=True)
    else:
        mean, variance, count = (_synchronized_moments if synchronize else _moments)(x, affine)
        output = affine.normalize(x, mean, variance, epsilon)
        variance = _unbiased(variance, count)
    return averages.updated(output, mean, variance)


@layer_register(log_shape=True)
def BatchRenorm(
    x: Any,
    rmax: float,
    dmax: float,
    *,
    training: bool | None = None,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    data_format: str = "channels_last",
    ema_update: str = "default",
) -> Any:
    """Batch normalization whose training output is corrected towards the moving averages.

    The normalized batch is multiplied by r, the ratio of the two standard deviations clipped to
    [1 / rmax, rmax], and shifted by d, the difference of the means clipped to [-dmax, dmax]. No
    gradient flows through r and d. `rmax=1, dmax=0` is `BatchNorm`. A schedule usually begins there
    and widens the limits, so they may be tensors. Variables and `ema_update` as in `BatchNorm`.

        x = BatchRenorm("bn", x, rmax=3.0, dmax=5.0)
    """
    affine = _Affine(x, data_format, center, scale, beta_initializer, gamma_initializer)
    averages = _Averages(affine, momentum, ema_update)
    if not in_training(training):
        return averages.normalize(x, epsilon)
    usual_mean, usual_variance = averages.values()
    mean, variance, count = _moments(x, affine)
    usual_deviation, deviation = tf.sqrt(usual_variance + epsilon), tf.sqrt(variance + epsilon)
    r = tf.clip_by_value(deviation / usual_deviation, 1 / rmax, rmax)
    d = tf.clip_by_value((mean - usual_mean) / usual_deviation, -dmax, dmax)
    r, d, shaped = tf.stop_gradient(r), tf.stop_gradient(d), affine.shaped
    normal = (tf.cast(x, tf.float32) - shaped(mean)) / shaped(deviation)
    corrected = normal * shaped(r * affine.gamma) + shaped(d * affine.gamma + affine.beta)
    return averages.updated(tf.cast(corrected, x.dtype), mean, _unbiased(variance, count))


def _format_of(axis: int | None, rank: int, data_format: str) -> str:
    if axis is None or rank == 2:
        return data_format
    if axis % rank not in (1, rank - 1):
        raise ValueError(f"expected axis 1 or -1, received {axis} for an input of rank {rank}")
    return "channels_first" if axis % rank == 1 else "channels_last"


def _has_fused_kernel(x: Any) -> bool:
    return x.shape.rank == 4 and x.dtype in (tf.float32, tf.float16, tf.bfloat16)


def _fused(x: Any, affine: _Affine, epsilon: float, **options: Any) -> tuple[Any, Any, Any]:
    """TensorFlow's fused kernel: the output, the mean and the unbiased variance."""
    data_format = tf_data_format(affine.layout, 4)
    output, mean, variance = v1.nn.fused_batch_norm(
        x, affine.gamma, affine.beta, epsilon=epsilon, data_format=data_format, **options
    )
    return output, mean, variance


def _by_parts(x: Any, affine: _Affine, size: int, epsilon: float) -> tuple[Any, Any, Any]:
    """Ghost batch norm: the batch as [parts, size, ...], each part with its own statistics."""
    if x.shape[0] is not None and x.shape[0] % size:
        raise ValueError(
            f"virtual_batch_size={size} must divide the batch, which has {x.shape[0]} datapoints"
        )
    shape = [-1, size, *(size_of(x, axis) for axis in range(1, affine.rank))]
    kept = (0, channel_axis(affine.rank, affine.layout) + 1)
    normal, *moments = _normal(x, shape, kept, epsilon)
    count = tf.cast(tf.size(x), tf.float32) / tf.cast(tf.size(moments[0]), tf.float32)
    mean, variance = (tf.reduce_mean(tf.reshape(v, [-1, affine.channels]), 0) for v in moments)
    return affine.apply(normal, 1.0, x.dtype), mean, _unbiased(variance, count)


def _moments(x: Any, affine: _Affine) -> tuple[Any, Any, Any]:
    """Mean and variance of each channel of this tower's batch, and the elements per channel."""
    axes = [axis for axis in range(affine.rank) if axis != channel_axis(affine.rank, affine.layout)]
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), axes)
    return mean, variance, tf.cast(tf.size(x), tf.float32) / affine.channels


def _unbiased(variance: Any, count: Any) -> Any:
    """The variance of the population, as the fused kernels return it."""
    return variance * count / tf.maximum(count - 1, 1)


def _synchronized_moments(x: Any, affine: _Affine) -> tuple[Any, Any, Any]:
    """The moments over the batches of all towers; gradients flow to each of them."""
    own_mean, own_variance, own_count = _moments(x, affine)
    # Sums, so that towers with fewer datapoints count for less.
    total, count = _sum_over_towers([own_mean * own_count, own_count])
    mean = total / count
    # A second reduction: E[x^2] - E[x]^2 would lose precision if the mean is large.
    (squares,) = _sum_over_towers([(own_variance + tf.square(own_mean - mean)) * own_count])
    return mean, squares / count, count


def _sum_over_towers(values: Sequence[Any]) -> Sequence[Any]:
    """The sums over the towers of this process, and then over those of all ranks."""
    if _replicas() > 1:
        replica = tf.distribute.get_replica_context()
        values = replica.all_reduce(tf.distribute.ReduceOp.SUM, values)
    context = get_current_tower_context()
    return context.sum_over_ranks(values) if context and context.sum_over_ranks else values


def _replicas() -> int:
    replica = tf.distribute.get_replica_context()
    return replica.num_replicas_in_sync if replica else 1


def _must_synchronize() -> bool:
    context = get_current_tower_context()
    if _replicas() > 1 or (context and context.sum_over_ranks):
        return True
    if context and context.is_training and context.total > 1 and not context.probing:
        raise ValueError(
            "sync_statistics needs towers that run together under tf.distribute; this trainer runs "
            f"its {context.total} towers one by one. Use SyncMultiGPUTrainerReplicated"
        )
    return False


@layer_register(log_shape=True)
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
    affine = _Affine(x, data_format, center, scale, beta_initializer, gamma_initializer)
    axes = list(range(1, affine.rank)) if axis is None else axis
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), axes, keepdims=True)
    return affine.normalize(x, mean, variance, epsilon)


@layer_register(log_shape=True)
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
    """Normalizes each channel of each image separately; 4-D inputs, variables as in `LayerNorm`."""
    expect_rank(x, 4)
    affine = _Affine(x, data_format, center, scale, beta_initializer, gamma_initializer)
    axes = spatial_axes(4, data_format)
    mean, variance = tf.nn.moments(tf.cast(x, tf.float32), axes, keepdims=True)
    return affine.normalize(x, mean, variance, epsilon)


@layer_register(log_shape=True)
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
    affine = _Affine(x, data_format, center, scale, beta_initializer, gamma_initializer)
    channels = affine.channels
    if channels % groups:
        raise ValueError(f"groups={groups} must divide the number of channels, which is {channels}")
    # One more axis, after that of the groups: the channels within a group.
    at = channel_axis(affine.rank, affine.layout)
    shape = [size_of(x, axis) for axis in range(affine.rank)]
    shape[at : at + 1] = [groups, channels // groups]
    normal, _, _ = _normal(x, shape, (0, at), epsilon)
    return affine.apply(normal, 1.0, x.dtype)


def _normal(
    x: Any, shape: list[Any], kept: tuple[int, int], epsilon: float
) -> tuple[Any, Any, Any]:
    """`x` normalized, in another shape, over all axes except `kept`; and the moments used."""
    parts = tf.cast(tf.reshape(x, shape), tf.float32)
    axes = [axis for axis in range(len(shape)) if axis not in kept]
    mean, variance = tf.nn.moments(parts, axes, keepdims=True)
    normal = (parts - mean) * tf.math.rsqrt(variance + epsilon)
    return tf.ensure_shape(tf.reshape(normal, tf.shape(x)), x.shape), mean, variance


@layer_register(log_shape=True)
def RMSNorm(
    x: Any, *, epsilon: float = 1e-6, scale: bool = True, gamma_initializer: Any = None
) -> Any:
    """Divides by the root mean square over the last axis; variable `gamma`, float32.

    x = RMSNorm("norm", x)
    """
    values = tf.cast(x, tf.float32)
    output = values * tf.math.rsqrt(tf.reduce_mean(tf.square(values), -1, keepdims=True) + epsilon)
    variables = VariableHolder()
    if scale:
        variables.gamma = _vector("gamma", channels_of(x), gamma_initializer, 1.0)
        output *= variables.gamma
    output = tf.cast(output, x.dtype)
    output.variables = variables
    return output


@layer_register(log_shape=True)
def SpectralNorm(
    x: Any,
    layer: Callable[..., Any],
    arguments: dict[str, Any] | None = None,
    *,
    iterations: int = 1,
    training: bool | None = None,
) -> Any:
    """Calls another layer with its kernel `W` divided by an estimate of its largest singular value.

    Each training step improves the estimate by `iterations` steps of the power method, starting
    from the vector of the previous step, the variable `u`. The other variables are those of the
    layer, under this layer's name. `arguments` and argscopes of the layer apply to it.

        x = SpectralNorm("conv0", x, Conv2D, {"filters": 64, "kernel_size": 3})
    """
    inner = getattr(layer, "in_open_scope", None)
    if inner is None:
        raise TypeError(f"expected a layer such as Conv2D, received {layer!r}")
    normalized: list[Any] = []

    def getter(getter: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        weights = getter(name, *args, **kwargs)
        if not name.endswith("/W"):
            return weights
        normalized.append(name)
        if len(normalized) > 1:
            raise ValueError(f"expected a layer with one kernel W, received {normalized}")
        return _divided(weights, iterations, training)

    scope = v1.get_variable_scope()
    with v1.variable_scope(scope, custom_getter=getter, auxiliary_name_scope=False):
        output = inner(x, **(arguments or {}))
    if not normalized:
        raise ValueError(f"{inspect.unwrap(layer).__name__} has no kernel W to normalize")
    return output


def _divided(weights: Any, iterations: int, training: bool | None) -> Any:
    matrix = tf.cast(tf.reshape(weights, [-1, weights.shape[-1]]), tf.float32)
    u = state_variable("u", [1, matrix.shape[1]], v1.random_normal_initializer())
    fixed, row = tf.stop_gradient(matrix), _unit(tf.convert_to_tensor(u))
    column = _unit(tf.matmul(row, fixed, transpose_b=True))
    if in_training(training):
        for _ in range(iterations):
            row = _unit(tf.matmul(column, fixed))
            column = _unit(tf.matmul(row, fixed, transpose_b=True))
    largest = tf.squeeze(tf.matmul(tf.matmul(column, matrix), row, transpose_b=True))
    output = tf.cast(tf.reshape(matrix / largest, weights.shape), weights.dtype)
    return update_state(output, [(u, row)]) if in_training(training) else output


def _unit(vector: Any) -> Any:
    return tf.math.divide(vector, tf.norm(vector) + _SMALLEST_NORM)

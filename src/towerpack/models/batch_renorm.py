"""Batch renormalization."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.affine import Affine
from towerpack.models.batch_norm import OLD_BATCH_NORM_NAMES, RANKS, batch_moments
from towerpack.models.data_format import channels_of, get_data_format, per_channel
from towerpack.models.layer_state import checked_mode, moved, state_variable, update_state
from towerpack.models.phase import in_training
from towerpack.models.registry import layer_register
from towerpack.models.shapes import expect_rank


@layer_register(renamed=OLD_BATCH_NORM_NAMES)
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

    The batch's normalization is multiplied by r, the ratio of the two standard deviations kept
    within [1 / rmax, rmax], and shifted by d, the difference of the means kept within dmax; no
    gradient flows through either. `rmax=1, dmax=0` is `BatchNorm`. Numbers or tensors: a schedule
    that begins there and widens is usual. Variables and `ema_update` as in `BatchNorm`.

        x = BatchRenorm("bn", x, rmax=3.0, dmax=5.0)
    """
    rank = expect_rank(x, *RANKS)
    layout = "channels_last" if rank == 2 else get_data_format(data_format)
    channels = channels_of(x, layout)
    checked_mode(ema_update)
    affine = Affine(channels, center, scale, beta_initializer, gamma_initializer)
    mean = state_variable("mean/EMA", [channels], v1.zeros_initializer())
    variance = state_variable("variance/EMA", [channels], v1.ones_initializer())
    affine.variables.mean, affine.variables.variance = mean, variance
    usual_mean, usual_variance = tf.convert_to_tensor(mean), tf.convert_to_tensor(variance)

    def shaped(vector: Any) -> Any:
        return per_channel(vector, rank, layout)

    if not in_training(training):
        return affine.normalize(x, shaped(usual_mean), shaped(usual_variance), epsilon, layout)

    moments = batch_moments(x, layout)
    usual_deviation = tf.sqrt(usual_variance + epsilon)
    deviation = tf.sqrt(moments.variance + epsilon)
    r = tf.clip_by_value(deviation / usual_deviation, 1 / rmax, rmax)
    d = tf.clip_by_value((moments.mean - usual_mean) / usual_deviation, -dmax, dmax)
    r, d = tf.stop_gradient(r), tf.stop_gradient(d)
    normal = (tf.cast(x, tf.float32) - shaped(moments.mean)) / shaped(deviation)
    corrected = normal * shaped(r * affine.gamma) + shaped(d * affine.gamma + affine.beta)
    now = moments.population()
    updates = [moved(mean, now.mean, momentum), moved(variance, now.variance, momentum)]
    output = update_state(tf.cast(corrected, x.dtype), updates, ema_update)
    output.variables = affine.variables
    return output

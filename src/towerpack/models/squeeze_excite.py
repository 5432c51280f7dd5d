"""Attention over channels."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.data_format import channels_of, spatial_axes
from towerpack.models.fc import FullyConnected
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import expect_rank
from towerpack.models.weights import Activation


@layer_register(log_shape=True)
def SqueezeExcite(
    x: Any,
    ratio: int = 16,
    *,
    activation: Activation = tf.nn.relu,
    data_format: str = "channels_last",
) -> Any:
    """Multiplies each channel by a number in (0, 1) computed from the means of all channels.

    Two fully connected layers, `squeeze` to `1 / ratio` of the channels and `excite` back.

        x = SqueezeExcite("se", x)
    """
    axes = spatial_axes(expect_rank(x, 4), data_format)
    channels = channels_of(x, data_format)
    means = tf.reduce_mean(x, axes)
    narrow = FullyConnected("squeeze", means, max(channels // ratio, 1), activation=activation)
    gate = FullyConnected("excite", narrow, channels, activation=tf.nn.sigmoid)
    shaped = tf.reshape(gate, [-1, 1, 1, channels] if axes == [1, 2] else [-1, channels, 1, 1])
    output = x * shaped
    output.variables = VariableHolder(
        squeeze_W=narrow.variables.W,
        squeeze_b=narrow.variables.b,
        excite_W=gate.variables.W,
        excite_b=gate.variables.b,
    )
    return output

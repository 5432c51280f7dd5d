"""Attention over positions, the transformer block, and attention over channels."""

from __future__ import annotations

import math
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.dense import FullyConnected
from towerpack.models.elementwise import Dropout
from towerpack.models.norms import LayerNorm
from towerpack.models.registry import layer_register
from towerpack.models.shapes import (
    channels_are_last,
    channels_of,
    expect_rank,
    size_of,
    spatial_axes,
)
from towerpack.models.variables import Activation, VariableHolder, bias, kernel

# The logit of hidden positions. The softmax is computed in float32, where this results in 0.
_HIDDEN = -1e9


@layer_register(log_shape=True)
def MultiHeadAttention(
    x: Any,
    num_heads: int,
    key_dim: int | None = None,
    *,
    context: Any = None,
    mask: Any = None,
    causal: bool = False,
    dropout: float = 0.0,
    use_bias: bool = True,
    output_dim: int | None = None,
    kernel_initializer: Any = None,
    training: bool | None = None,
) -> Any:
    """Each position of `x` [batch, time, features] attends to all positions that it may see.

    These are positions of `x` itself, or of `context` [batch, other time, features]. `mask` must
    broadcast over [batch, heads, time, other time] and is True where a position is visible;
    `causal` hides later positions. `key_dim` is the size of a head, by default the features divided
    by `num_heads`. Variables `query/W` [features, heads, key_dim], `query/b`, likewise `key` and
    `value`, and `out/W` [heads, key_dim, output_dim], `out/b`. The softmax is computed in float32.

        x = x + MultiHeadAttention("attention", LayerNorm("ln", x, axis=-1), 8, causal=True)
    """
    expect_rank(x, 3)
    features = channels_of(x)
    if key_dim is None:
        if features % num_heads:
            raise ValueError(
                f"num_heads={num_heads} must divide the features, which are {features}"
            )
        key_dim = features // num_heads
    source = x if context is None else context
    variables = VariableHolder()
    initializer = kernel_initializer or v1.glorot_uniform_initializer()

    def project(name: str, inputs: Any) -> Any:
        shape = [channels_of(inputs), num_heads, key_dim]
        weights = kernel(shape, x.dtype, _flat(initializer, 1), name=f"{name}/W")
        setattr(variables, f"{name}_W", weights)
        output = tf.einsum("btf,fhk->bhtk", inputs, weights)
        if use_bias:
            shift = bias([num_heads, key_dim], x.dtype, name=f"{name}/b")
            setattr(variables, f"{name}_b", shift)
            output += shift[:, tf.newaxis, :]
        return output

    query, key, value = project("query", x), project("key", source), project("value", source)
    logits = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) / key_dim**0.5
    weights = tf.cast(tf.nn.softmax(_hide(logits, mask, causal)), x.dtype)
    attended = tf.matmul(Dropout(weights, rate=dropout, training=training), value)

    output_dim = output_dim or features
    out = kernel([num_heads, key_dim, output_dim], x.dtype, _flat(initializer, 2), name="out/W")
    variables.out_W = out
    output = tf.einsum("bhtk,hko->bto", attended, out)
    if use_bias:
        variables.out_b = bias([output_dim], x.dtype, name="out/b")
        output += variables.out_b
    output.variables = variables
    return output


def _flat(initializer: Any, inputs: int) -> Any:
    """Calls the initializer for a matrix: the first `inputs` axes by the others.

    Initializers derive their scale from the numbers of inputs and outputs.
    """

    def initialize(shape: Any, dtype: Any = None, **_: Any) -> Any:
        matrix = [math.prod(shape[:inputs]), math.prod(shape[inputs:])]
        return tf.reshape(initializer(matrix, dtype=dtype), shape)

    return initialize


def _hide(logits: Any, mask: Any, causal: bool) -> Any:
    if mask is not None:
        logits = tf.where(tf.cast(mask, tf.bool), logits, _HIDDEN)
    if causal:
        times, others = tf.shape(logits)[2], tf.shape(logits)[3]
        # Aligned at the end: the last query sees all positions.
        seen = tf.range(others)[tf.newaxis, :] <= tf.range(times)[:, tf.newaxis] + others - times
        logits = tf.where(seen, logits, _HIDDEN)
    return logits


@layer_register(log_shape=True)
def TransformerBlock(
    x: Any,
    num_heads: int,
    hidden_dim: int | None = None,
    *,
    mask: Any = None,
    causal: bool = False,
    dropout: float = 0.0,
    activation: Activation = tf.nn.gelu,
    norm_first: bool = True,
    training: bool | None = None,
) -> Any:
    """Attention and two fully connected layers, each part with a residual connection and a norm.

    The input is [batch, time, features]. The norm comes before each part, as in GPT; with
    `norm_first=False` it comes after the sum, as in the original transformer. `hidden_dim` defaults
    to four times the features. The parts are named `attention`, `norm0`, `fc0`, `fc1`, `norm1`.

        x = TransformerBlock("block0", x, num_heads=8, causal=True)
    """
    expect_rank(x, 3)
    features = channels_of(x)

    def attend(inputs: Any) -> Any:
        options = {"mask": mask, "causal": causal, "dropout": dropout, "training": training}
        return MultiHeadAttention("attention", inputs, num_heads, **options)

    def feed_forward(inputs: Any) -> Any:
        flat = tf.reshape(inputs, [-1, features])
        flat = FullyConnected("fc0", flat, hidden_dim or 4 * features, activation=activation)
        flat = FullyConnected("fc1", flat, features)
        return tf.reshape(flat, [size_of(inputs, 0), size_of(inputs, 1), features])

    for number, part in enumerate([attend, feed_forward]):
        inputs = LayerNorm(f"norm{number}", x, axis=-1) if norm_first else x
        x = x + Dropout(part(inputs), rate=dropout, training=training)
        if not norm_first:
            x = LayerNorm(f"norm{number}", x, axis=-1)
    return x


@layer_register(log_shape=True)
def SqueezeExcite(
    x: Any,
    ratio: int = 16,
    *,
    activation: Activation = tf.nn.relu,
    data_format: str = "channels_last",
) -> Any:
    """Multiplies each channel by a number in (0, 1) computed from the means of all channels.

    Two fully connected layers: `squeeze` to `1 / ratio` of the channels, and `excite` back.

        x = SqueezeExcite("se", x)
    """
    means = tf.reduce_mean(x, spatial_axes(expect_rank(x, 4), data_format))
    channels = channels_of(x, data_format)
    narrow = FullyConnected("squeeze", means, max(channels // ratio, 1), activation=activation)
    gate = FullyConnected("excite", narrow, channels, activation=tf.nn.sigmoid)
    last = channels_are_last(data_format)
    output = x * tf.reshape(gate, [-1, 1, 1, channels] if last else [-1, channels, 1, 1])
    output.variables = VariableHolder(
        squeeze_W=narrow.variables.W,
        squeeze_b=narrow.variables.b,
        excite_W=gate.variables.W,
        excite_b=gate.variables.b,
    )
    return output

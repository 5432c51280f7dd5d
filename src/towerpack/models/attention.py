"""Attention with several heads."""

from __future__ import annotations

import math
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.data_format import channels_of
from towerpack.models.dropout import Dropout
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import expect_rank
from towerpack.models.weights import bias, kernel

# Added to the logits of what may not be seen. Softmax is computed in float32, where it gives zero.
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
    """Each position of `x` [batch, time, features] gathers from all positions it may see.

    Attention to itself, or to `context` [batch, other time, features]. `mask`, to be broadcast over
    [batch, heads, time, other time], is True where there is something to see; `causal` hides what
    comes later. `key_dim` is a head's size, by default the features divided by `num_heads`.
    Variables `query/W` [features, heads, key_dim], `query/b`, likewise `key` and `value`, and
    `out/W` [heads, key_dim, output_dim], `out/b`. The softmax is computed in float32.

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
        size = channels_of(inputs)
        # Made flat, for initializers that look at the numbers of inputs and outputs.
        weights = kernel(
            [size, num_heads, key_dim], x.dtype, _flat(initializer, 1), name=f"{name}/W"
        )
        setattr(variables, f"{name}_W", weights)
        output = tf.einsum("btf,fhk->bhtk", inputs, weights)
        if use_bias:
            shift = bias([num_heads, key_dim], x.dtype, name=f"{name}/b")
            setattr(variables, f"{name}_b", shift)
            output += shift[:, tf.newaxis, :]
        return output

    query, key, value = project("query", x), project("key", source), project("value", source)
    logits = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) / key_dim**0.5
    logits = _hide(logits, mask, causal)
    weights = tf.cast(tf.nn.softmax(logits), x.dtype)
    weights = Dropout(weights, rate=dropout, training=training)
    gathered = tf.matmul(weights, value)

    output_dim = output_dim or features
    out = kernel([num_heads, key_dim, output_dim], x.dtype, _flat(initializer, 2), name="out/W")
    variables.out_W = out
    output = tf.einsum("bhtk,hko->bto", gathered, out)
    if use_bias:
        variables.out_b = bias([output_dim], x.dtype, name="out/b")
        output += variables.out_b
    output.variables = variables
    return output


def _flat(initializer: Any, inputs: int) -> Any:
    """The initializer, called with a matrix: the first `inputs` axes by the others."""

    def initialize(shape: Any, dtype: Any = None, **_: Any) -> Any:
        matrix = [math.prod(shape[:inputs]), math.prod(shape[inputs:])]
        return tf.reshape(initializer(matrix, dtype=dtype), shape)

    return initialize


def _hide(logits: Any, mask: Any, causal: bool) -> Any:
    if mask is not None:
        logits = tf.where(tf.cast(mask, tf.bool), logits, _HIDDEN)
    if causal:
        times, others = tf.shape(logits)[2], tf.shape(logits)[3]
        # Aligned at the end: the last query sees everything.
        seen = tf.range(others)[tf.newaxis, :] <= tf.range(times)[:, tf.newaxis] + others - times
        logits = tf.where(seen, logits, _HIDDEN)
    return logits

"""One block of a transformer."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.attention import MultiHeadAttention
from towerpack.models.data_format import channels_of
from towerpack.models.dropout import Dropout
from towerpack.models.fc import FullyConnected
from towerpack.models.layer_norm import LayerNorm
from towerpack.models.registry import layer_register
from towerpack.models.shapes import expect_rank, size_of
from towerpack.models.weights import Activation


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
    """Attention and a network of two layers, each with a residual connection and a norm.

    For [batch, time, features]. The norm comes before each part as in GPT, or after the sum as in
    the first transformers with `norm_first=False`. `hidden_dim` defaults to four times the
    features. Parts are named `attention`, `norm0`, `fc0`, `fc1`, `norm1`.

        x = TransformerBlock("block0", x, num_heads=8, causal=True)
    """
    expect_rank(x, 3)
    features = channels_of(x)

    def attend(inputs: Any) -> Any:
        output = MultiHeadAttention(
            "attention",
            inputs,
            num_heads,
            mask=mask,
            causal=causal,
            dropout=dropout,
            training=training,
        )
        return Dropout(output, rate=dropout, training=training)

    def think(inputs: Any) -> Any:
        flat = tf.reshape(inputs, [-1, features])
        flat = FullyConnected("fc0", flat, hidden_dim or 4 * features, activation=activation)
        flat = FullyConnected("fc1", flat, features)
        shape = [size_of(inputs, 0), size_of(inputs, 1), features]
        return Dropout(tf.reshape(flat, shape), rate=dropout, training=training)

    for number, part in enumerate([attend, think]):
        if norm_first:
            x = x + part(LayerNorm(f"norm{number}", x, axis=-1))
        else:
            x = LayerNorm(f"norm{number}", x + part(x), axis=-1)
    return x

"""Layers with a matrix of weights: fully connected, and an embedding."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.registry import layer_register
from towerpack.models.shapes import batch_flatten
from towerpack.models.variables import Activation, Regularizer, VariableHolder, finished, kernel

# The usual initial standard deviation of language models. He's would depend on the vocabulary.
_EMBEDDING_DEVIATION = 0.02


@layer_register(log_shape=True)
def FullyConnected(
    x: Any,
    units: int,
    *,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Regularizer | None = None,
    bias_regularizer: Regularizer | None = None,
) -> Any:
    """Multiplies the input, flattened to [batch, features], by `W` [in, out] and adds `b`.

    The default initializer is He's, for ReLU.

        logits = FullyConnected("fc", x, 10)
    """
    x = batch_flatten(x)
    if x.shape[1] is None:
        raise ValueError(
            "the number of features is unknown; declare the input's size in its TensorSpec"
        )
    weights = kernel([x.shape[1], units], x.dtype, kernel_initializer, kernel_regularizer)
    output, variables = tf.matmul(x, weights), VariableHolder(W=weights)
    return finished(output, variables, activation, use_bias, bias_initializer, bias_regularizer)


@layer_register(log_shape=True)
def Embedding(
    x: Any,
    input_dim: int,
    output_dim: int,
    *,
    dtype: Any = None,
    embeddings_initializer: Any = None,
    embeddings_regularizer: Regularizer | None = None,
) -> Any:
    """Looks up rows of a table `W` [input_dim, output_dim] by integers of any shape.

    vectors = Embedding("words", ids, 10000, 128)
    """
    if not x.dtype.is_integer:
        raise TypeError(f"expected integers as indices, received {x.dtype.name}")
    initializer = embeddings_initializer or v1.random_normal_initializer(
        stddev=_EMBEDDING_DEVIATION
    )
    shape = [input_dim, output_dim]
    table = kernel(shape, dtype or tf.float32, initializer, embeddings_regularizer)
    output = tf.gather(table, x)
    output.variables = VariableHolder(W=table)
    return output

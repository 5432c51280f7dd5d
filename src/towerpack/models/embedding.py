"""A vector for each of many things."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.weights import Regularizer, kernel

# The spread that language models begin with; He's rule would depend on the vocabulary's size.
_INITIAL_DEVIATION = 0.02


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
    """The rows of a table `W` [input_dim, output_dim] for whole numbers of any shape.

    vectors = Embedding("words", ids, 10000, 128)
    """
    if not x.dtype.is_integer:
        raise TypeError(f"expected whole numbers to look up, received {x.dtype.name}")
    initializer = embeddings_initializer or v1.random_normal_initializer(stddev=_INITIAL_DEVIATION)
    table = kernel(
        [input_dim, output_dim], dtype or tf.float32, initializer, embeddings_regularizer
    )
    output = tf.gather(table, x)
    output.variables = VariableHolder(W=table)
    return output

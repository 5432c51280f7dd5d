"""What is known of a step inside the graph, and whether it went well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from towerpack._tensorflow import tf

QUICK_SIZE = 4096  # numbers: a weight up to this size is looked at in well under a microsecond


class StepResult(NamedTuple):
    """One step in the graph that is being traced."""

    cost: Any  # the sum of the costs of all towers
    weights: Sequence[tuple[Any, Any]]  # see `changed`
    inputs: Sequence[Any]  # of all its towers
    fetched: dict[str, Any]

    def finite(self, quick: bool = False) -> Any:
        """Whether the cost is, and the weights that the step left; `quick`: only small ones.

        Weights, not gradients: what gradient processors have put right has done no harm.
        """
        return all_finite(
            [
                self.cost,
                *(
                    variable if rows is None else tf.gather(variable, rows)
                    for variable, rows in self.weights
                    if not quick or variable.shape.num_elements() <= QUICK_SIZE
                ),
            ]
        )


def changed(weights: Iterable[Any], gradients: Iterable[Sequence[tuple[Any, Any]]]) -> list[Any]:
    """The weights, each with the rows that its gradient is of; with None for all of them.

    A table of embeddings may be many times as large as what a step changes of it.
    """
    rows = {
        id(variable): gradient.indices
        for pairs in gradients
        for gradient, variable in pairs
        if isinstance(gradient, tf.IndexedSlices)
    }
    return [(variable, rows.get(id(variable))) for variable in weights]


def all_finite(tensors: Iterable[Any]) -> Any:
    """Whether all numbers in all of them are.

    Told from their sum, in one pass over each: if it is finite, so are they. Only where it is not,
    they are looked at one by one, since a sum of large numbers may have overflowed by itself.
    """
    tensors = [_wide(tensor) for tensor in tensors]
    sums = [tf.cast(tf.reduce_sum(tensor), tf.float64) for tensor in tensors]
    return tf.cond(
        tf.math.is_finite(tf.add_n(sums)),
        lambda: tf.constant(True),
        lambda: tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors]),
    )


def _wide(tensor: Any) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype.is_complex:
        return tf.abs(tensor)
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor

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

    def finite(self) -> Any:
        """Whether the cost is, and the weights that the step left.

        Weights, not gradients: what gradient processors have put right has done no harm.
        """
        return all_finite(self._numbers())

    def sum_is_finite(self, quick: bool = False) -> Any:
        """The same at less cost; an overflow counts as infinite. `quick`: only small weights."""
        return sum_is_finite(self._numbers(quick))

    def _numbers(self, quick: bool = False) -> list[Any]:
        return [
            self.cost,
            *(
                variable if rows is None else tf.gather(variable, rows)
                for variable, rows in self.weights
                if not quick or variable.shape.num_elements() <= QUICK_SIZE
            ),
        ]


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


def all_finite(tensors: Sequence[Any]) -> Any:
    """Whether all numbers in all of them are finite: one by one only where their sum is not."""
    tensors = [_wide(tensor) for tensor in tensors]
    return tf.cond(
        sum_is_finite(tensors),
        lambda: tf.constant(True),
        lambda: tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors]),
    )


def sum_is_finite(tensors: Sequence[Any]) -> Any:
    """Whether the sum of all numbers is, in one pass over each: if so, all numbers are.

    If not, it may have overflowed by itself. Half precision is summed in single.
    """
    sums = [tf.cast(tf.reduce_sum(_wide(tensor)), tf.float64) for tensor in tensors]
    return tf.math.is_finite(tf.add_n(sums))


def _wide(tensor: Any) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype.is_complex:
        return tf.abs(tensor)
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor

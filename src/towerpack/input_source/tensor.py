"""Inputs that TensorFlow makes itself, and inputs that the caller passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.input_source.base import FeedfreeInput, InputSource
from towerpack.input_source.buffer import Batches
from towerpack.input_source.signature import checked_tensors
from towerpack.input_source.traced import TracedReader


class TensorInput(FeedfreeInput):
    """Tensors that a function of yours makes, in a traced call.

    There is no position to save: a function that has one keeps it in a variable. On several ranks
    each makes batches of its own; stateful random operations draw other numbers on each. If the
    tensors have complete static shapes, many steps can run in one call.

    >>> source = TensorInput(lambda: [tf.random.uniform([8, 4])], size=100)
    >>> source.setup([tf.TensorSpec([None, 4], tf.float32, "x")])
    >>> source.get_input_tensors()[0].shape.as_list(), source.size()
    ([8, 4], 100)

    Args:
        get_tensor_fn: returns the tensors in the order of the inputs, or a dict of them by name.
        size: how many batches make an epoch.
    """

    def __init__(self, get_tensor_fn: Callable[[], Any], size: int | None = None):
        if not callable(get_tensor_fn):
            raise TypeError(
                f"expected a function that returns tensors, received {get_tensor_fn!r}; a tensor "
                "made outside of the step would be the same in each"
            )
        if size is not None and size < 1:
            raise ValueError(f"expected a positive size or None, received {size}")
        self._function, self._size = get_tensor_fn, size

    def get_input_tensors(self) -> list[Any]:
        name = getattr(self._function, "__name__", type(self._function).__name__)
        return checked_tensors(self._function(), self.signature, f"{type(self).__name__}({name})")

    def specs(self) -> list[Any]:
        self._reader = self._reader or TracedReader(self.get_input_tensors)
        pairs = zip(self._reader.outputs, self.signature, strict=True)
        return [tf.TensorSpec(tensor.shape, spec.dtype, spec.name) for tensor, spec in pairs]

    def size(self) -> int | None:
        return self._size

    def batch_size(self) -> int | None:
        known = self._reader.shapes[0] if self._reader else None
        return (known[0] if known else None) or super().batch_size()


class DummyConstantInput(TensorInput):
    """The same zeros for ever: to time a model without its data.

    TensorFlow does not know that they are constant, and so computes everything as it would.

    Args:
        shapes: a complete shape for each input.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]):
        self.shapes = [tuple(shape) for shape in shapes]
        super().__init__(self._zeros)
        self._batches: Batches | None = None

    def _zeros(self) -> list[Any]:
        pairs = zip(self.shapes, self.signature, strict=True)
        return [tf.zeros(shape, spec.dtype) for shape, spec in pairs]

    def setup(self, signature: Sequence[Any]) -> None:
        super().setup(signature)
        self._batches = None
        if len(self.shapes) != len(self.signature):
            raise ValueError(
                f"expected a shape for each of the {len(self.signature)} inputs "
                f"{[spec.name for spec in self.signature]}, received {self.shapes}"
            )

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        """The batches of the last call again, if it was for as many."""
        if self._batches is None or self._batches.count != max(limit // group * group, group):
            self._batches = super()._take(limit, group, rows)
        return self._batches

    def close(self) -> None:
        self._batches = None


class PlaceholderInput(InputSource):
    """A placeholder for each input: for graphs that are fed, as that of a predictor is.

    They are for `tf.compat.v1.wrap_function(...).prune(feeds, fetches)` and `tf.Graph`. Nothing
    feeds the step of a trainer.
    """

    def get_input_tensors(self) -> list[Any]:
        return [placeholder(spec) for spec in self.signature]

    def next(self, limit: int = 1, group: int = 1, rows: int = 1) -> Batches:
        raise RuntimeError("a PlaceholderInput has no batches: its inputs are passed by the caller")


def placeholder(spec: Any) -> Any:
    if tf.executing_eagerly():
        raise RuntimeError(
            f"the input {spec.name!r} is a placeholder, which exists only in a graph; give it a "
            "value, or trace the function"
        )
    return v1.placeholder(spec.dtype, spec.shape, spec.name)

"""Inputs that TensorFlow makes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.input_source.base import FeedfreeInput
from towerpack.input_source.cell import Cell
from towerpack.input_source.signature import checked_tensors


class TensorInput(FeedfreeInput):
    """Tensors that a function of yours adds to the graph, anew for each tower and trace.

    There is no position to save: a function that has one keeps it in a variable. If the tensors
    have complete static shapes, steps can be compiled.

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
        self._shapes: list[tuple[int, ...]] | None = None

    def get_input_tensors(self) -> list[Any]:
        name = getattr(self._function, "__name__", type(self._function).__name__)
        tensors = checked_tensors(
            self._function(), self.signature, f"{type(self).__name__}({name})"
        )
        static = all(tensor.shape.is_fully_defined() for tensor in tensors)
        self._shapes = [tuple(tensor.shape) for tensor in tensors] if static else None
        return tensors

    def size(self) -> int | None:
        return self._size

    def batch_size(self) -> int | None:
        if self._shapes and self._shapes[0]:
            return self._shapes[0][0]
        return super().batch_size()

    def uniform(self, limit: int, taken: int) -> int:
        return limit if self._shapes is not None else 0

    def usual_shapes(self) -> list[tuple[int, ...]] | None:
        return self._shapes


class DummyConstantInput(TensorInput):
    """The same zeros for ever, on the device: to time a model without its data.

    TensorFlow does not know that they are constant, and so computes everything as it would.

    Args:
        shapes: a complete shape for each input.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]):
        self.shapes = [tuple(shape) for shape in shapes]
        self._cells: list[Cell] = []
        super().__init__(lambda: [cell.read() for cell in self._cells])

    def setup(self, signature: Sequence[Any]) -> None:
        self.close()
        super().setup(signature)
        if len(self.shapes) != len(self.signature):
            raise ValueError(
                f"expected a shape for each of the {len(self.signature)} inputs "
                f"{[spec.name for spec in self.signature]}, received {self.shapes}"
            )
        pairs = zip(self.shapes, self.signature, strict=True)
        self._cells = [Cell(tf.zeros(shape, spec.dtype)) for shape, spec in pairs]

    def close(self) -> None:
        for cell in self._cells:
            cell.close()
        self._cells = []

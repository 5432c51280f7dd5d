"""The calls of layers in one trace of a tower: what a table of layers is made from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from towerpack._tensorflow import tf, v1


@dataclass
class LayerCall:
    """A call of a layer of towerpack or Keras.

    Its operations are those of the tower's graph with the numbers `first` to `last`, without the
    last; `apart` if they are in another graph, that of a branch or loop. `has_parts` says that the
    layers which it calls have calls of their own here.
    """

    kind: str
    input: str
    parent: int | None
    has_parts: bool
    first: int
    last: int
    apart: bool
    name: str = ""  # without that of the parent
    output: str = ""
    outputs: tuple[str, ...] = ()  # the names of the tensors; none in eager mode
    variables: Sequence[Any] | None = None  # None: those whose names begin with the layer's

    def complete(self, name: str, outputs: Any, variables: Sequence[Any] | None = None) -> None:
        """Adds what is known when the layer has returned."""
        self.name, self.output, self.variables = name, shape_text(outputs), variables
        if not tf.executing_eagerly():
            flat = tf.nest.flatten(outputs)
            self.outputs = tuple(x.name for x in flat if tf.is_tensor(x) and hasattr(x, "op"))


class LayerCalls:
    """The calls of one trace, in the order in which they begin."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []
        self._open: list[int] = []
        self._graph = None if tf.executing_eagerly() else v1.get_default_graph()

    @contextlib.contextmanager
    def call(self, kind: str, x: Any, has_parts: bool = False) -> Iterator[LayerCall | None]:
        """Records a call, which the caller completes; None inside a layer that has no parts.

        It is None also for a layer that Keras calls in a graph of its own, to find shapes.
        """
        parent = self._open[-1] if self._open else None
        apart = not tf.executing_eagerly() and v1.get_default_graph() is not self._graph
        if parent is not None and (apart or not self.calls[parent].has_parts):
            yield None
            return
        number = 0 if apart else operation_number()
        made = LayerCall(kind, shape_text(x), parent, has_parts, number, number, apart)
        self._open.append(len(self.calls))
        self.calls.append(made)
        try:
            yield made
        finally:
            self._open.pop()
            made.last = 0 if apart else operation_number()


def operation_number() -> int:
    """The number of the next operation in the graph that is being traced; 0 in eager mode."""
    return 0 if tf.executing_eagerly() else len(v1.get_default_graph().get_operations())


def shape_text(x: Any) -> str:
    """The shape of a tensor, or those of several, as the table shows it."""
    if isinstance(x, list | tuple):
        return "[" + ", ".join(map(shape_text, x)) + "]"
    return str(x.shape.as_list()) if tf.is_tensor(x) and x.shape.rank is not None else "[?]"

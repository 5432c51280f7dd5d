"""A source for some of the inputs only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack.input_source.base import InputSource
from towerpack.input_source.placeholder import placeholder
from towerpack.input_source.proxy import ProxyInput


def remap_input_source(input: InputSource, names: Sequence[str]) -> InputSource:
    """The source with its components under other names, or in another order.

    `names` says which input each component is. Inputs that are not among them become placeholders,
    as in a `PlaceholderInput`: they must be fed, or not be used.

    Args:
        input: gives a component for each of the names.
    """
    return RemappedInput(input, names)


class RemappedInput(ProxyInput):
    """See `remap_input_source`."""

    def __init__(self, input: InputSource, names: Sequence[str]):
        super().__init__(input)
        self.names = list(names)
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"expected each name once, received {self.names}")

    def setup(self, signature: Sequence[Any]) -> None:
        declared = {spec.name: spec for spec in signature}
        unknown = [name for name in self.names if name not in declared]
        if unknown:
            raise ValueError(
                f"expected names of the inputs {list(declared)}, received also {unknown}"
            )
        self.signature = list(signature)
        self.input.setup([declared[name] for name in self.names])

    def get_input_tensors(self) -> list[Any]:
        given = dict(zip(self.names, self.input.get_input_tensors(), strict=True))
        return [
            given[spec.name] if spec.name in given else placeholder(spec) for spec in self.signature
        ]

    def usual_shapes(self) -> list[tuple[int, ...]] | None:
        shapes = self.input.usual_shapes()
        if shapes is None or len(self.names) < len(self.signature):
            return None
        given = dict(zip(self.names, shapes, strict=True))
        return [given[spec.name] for spec in self.signature]

    def uniform(self, limit: int, taken: int) -> int:
        uniform = self.input.uniform(limit, taken)
        return uniform if len(self.names) == len(self.signature) else 0

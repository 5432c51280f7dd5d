"""One function of an export: what it takes and what it gives, by the names users will see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from towerpack.tower import TowerFunc

Names = Mapping[str, str] | Sequence[str]


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of an exported function.

    `inputs` and `outputs` map keys, which the users of the export see, to names in the tower; a
    list of names stands for itself. With `preprocess` the export takes `preprocess_inputs` (a list
    of `tf.TensorSpec`) instead: the function is called with these tensors, in the graph, and
    returns the tower's `inputs` in their order.

    >>> Signature({"pixels": "image"}, ["prob"]).outputs_by_key
    {'prob': 'prob'}
    """

    inputs: Names
    outputs: Names
    preprocess: Callable[..., Any] | None = None
    preprocess_inputs: Sequence[Any] = ()

    def __post_init__(self) -> None:
        for names in (self.inputs, self.outputs):
            if isinstance(names, str):
                raise TypeError(f"expected a list or a dict of names, received {names!r}")
        if not self.outputs:
            raise ValueError("expected at least one output, received none")
        if (self.preprocess is None) != (not self.preprocess_inputs):
            raise ValueError("expected preprocess and preprocess_inputs together, or neither")

    @property
    def inputs_by_key(self) -> dict[str, str]:
        """Key to name of the input of `tower_func(...)`."""
        if self.preprocess is not None:
            return {spec.name: spec.name for spec in self.preprocess_inputs}
        return _by_key(self.inputs)

    @property
    def outputs_by_key(self) -> dict[str, str]:
        return _by_key(self.outputs)

    def tower_func(self, tower: TowerFunc) -> TowerFunc:
        """The tower, behind the preprocessing if there is any."""
        if self.preprocess is None:
            return tower
        preprocess, made = self.preprocess, list(_by_key(self.inputs).values())
        others = [spec for spec in tower.signature if spec.name not in made]

        def preprocessed(*inputs: Any) -> Any:
            tensors = preprocess(*inputs[: len(self.preprocess_inputs)])
            tensors = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
            if len(tensors) != len(made):
                raise ValueError(
                    f"expected preprocess to return {len(made)} tensors for the inputs {made}, "
                    f"received {len(tensors)}"
                )
            given = dict(zip(made, tensors, strict=True))
            given.update(
                zip((s.name for s in others), inputs[len(self.preprocess_inputs) :], strict=True)
            )
            return tower.func(*(given[spec.name] for spec in tower.signature))

        return TowerFunc(preprocessed, [*self.preprocess_inputs, *others])


def _by_key(names: Names) -> dict[str, str]:
    return dict(names) if isinstance(names, Mapping) else {name: name for name in names}

"""A tower traced for inference: any of its tensors from any of its inputs, without side effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.context import TowerContext
from towerpack.tower.store import VariableStore
from towerpack.tower.summary_writer import silenced
from towerpack.tower.tower_func import TowerFunc, TowerTensorHandle


class TracedTower:
    """One trace of the tower function under `is_training=False`, sharing the variables of a store.

    `function(inputs, outputs)` cuts from it a callable that computes just these outputs: inputs
    that they do not need may be left out, and assignments in the tower do not run.
    """

    def __init__(self, tower_func: TowerFunc, store: VariableStore, name: str = ""):
        self.tower_func, self.store = tower_func, store
        handles: list[TowerTensorHandle] = []

        def build(*inputs: Any) -> list[Any]:
            with silenced(), TowerContext(name, is_training=False, store=store):
                handles.append(tower_func(*inputs))
            return []

        self._wrapped = v1.wrap_function(build, list(tower_func.signature))
        (self.handle,) = handles
        store.adopt_all(self._wrapped.graph.variables)

    def prune(self, input_names: Sequence[str] | None, output_names: Sequence[str]) -> Any:
        """The `tf` concrete function that computes these outputs, with the variables it reads."""
        names = list(self.tower_func.input_names if input_names is None else input_names)
        unknown = [name for name in names if name not in self.tower_func.input_names]
        if unknown:
            raise KeyError(
                f"no inputs are named {unknown}; the tower has {self.tower_func.input_names}"
            )
        feeds = [self.handle.get_tensor(name) for name in names]
        return self._wrapped.prune(feeds, self.handle.get_tensors(output_names))

    def function(
        self, input_names: Sequence[str] | None, output_names: Sequence[str]
    ) -> Callable[..., list[Any]]:
        pruned = self.prune(input_names, output_names)
        names = self.tower_func.input_names if input_names is None else input_names
        dtypes = [self.handle.get_tensor(name).dtype for name in names]

        def run(*inputs: Any) -> list[Any]:
            return pruned(
                *(tf.convert_to_tensor(x, dtype) for x, dtype in zip(inputs, dtypes, strict=True))
            )

        return run

"""A tower traced for inference: any of its tensors from any of its inputs, without side effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.context import TowerContext
from towerpack.tower.creation import operations_before
from towerpack.tower.store import VariableStore
from towerpack.tower.summary_writer import silenced
from towerpack.tower.tower_func import TowerFunc, TowerTensorHandle


class TracedTower:
    """One trace of the tower function under `is_training=False`, with the variables of a store.

    `function(inputs, outputs)` returns a callable that computes only these outputs. Inputs that
    they do not need may be omitted, and assignments in the tower do not run.
    """

    def __init__(self, tower_func: TowerFunc, store: VariableStore, name: str = ""):
        self.tower_func, self.store = tower_func, store
        handles: list[TowerTensorHandle] = []

        def build(*inputs: Any) -> list[Any]:
            with silenced(), TowerContext(name, is_training=False, store=store):
                with tf.GradientTape() as tape:
                    handles.append(tower_func(*inputs))
                # Trainable variables first, as in training, so that all get the same names.
                store.adopt_all(tape.watched_variables())
            return []

        self._wrapped = v1.wrap_function(build, list(tower_func.signature))
        (self.handle,) = handles
        store.adopt_all(self._wrapped.graph.variables)

    @property
    def variables(self) -> list[Any]:
        """The variables that the tower uses, in no particular order."""
        return list(self._wrapped.graph.variables)

    def prune(self, input_names: Sequence[str] | None, output_names: Sequence[str]) -> Any:
        """The `tf` concrete function that computes these outputs, with the variables it reads."""
        names = list(self.tower_func.input_names if input_names is None else input_names)
        unknown = [name for name in names if name not in self.tower_func.input_names]
        if unknown:
            raise KeyError(
                f"no inputs are named {unknown}; the tower has {self.tower_func.input_names}"
            )
        feeds = [self.handle.get_tensor(name) for name in names]
        fetches = self.handle.get_tensors(output_names)
        needed = operations_before(fetches, {feed.op.name for feed in feeds})
        lacking = [
            name
            for name in self.tower_func.input_names
            if name not in names and self.handle.get_tensor(name).op.name in needed
        ]
        if lacking:
            raise ValueError(
                f"expected all inputs that {list(output_names)} depend on, received {names}: "
                f"{lacking} are missing"
            )
        return prune(self._wrapped, feeds, fetches)

    def function(
        self, input_names: Sequence[str] | None, output_names: Sequence[str]
    ) -> Callable[..., list[Any]]:
        """`prune` as a function of arrays or tensors; one of another shape is an error."""
        pruned = self.prune(input_names, output_names)
        names = self.tower_func.input_names if input_names is None else input_names
        feeds = [self.handle.get_tensor(name) for name in names]

        def run(*inputs: Any) -> list[Any]:
            tensors = [
                tf.convert_to_tensor(x, feed.dtype) for x, feed in zip(inputs, feeds, strict=True)
            ]
            for name, tensor, feed in zip(names, tensors, feeds, strict=True):
                if not feed.shape.is_compatible_with(tensor.shape):
                    raise ValueError(
                        f"expected {name!r} of shape {feed.shape}, received {tensor.shape}"
                    )
            return pruned(*tensors)

        return run


def prune(wrapped: Any, feeds: Sequence[Any], fetches: Sequence[Any]) -> Any:
    """The part of a wrapped function between these tensors.

    It gets a signature. Without one, TensorFlow would format the inputs into an error message in
    every call and discard it, which takes milliseconds for an image.
    """
    signature = tuple(tf.TensorSpec(feed.shape, feed.dtype) for feed in feeds)
    return wrapped.prune(list(feeds), list(fetches), input_signature=(signature, {}))

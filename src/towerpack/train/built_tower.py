"""One tower of a step that is being traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from towerpack.tower import TowerContext, TowerTensorHandle
from towerpack.train.objective import Objective


@dataclass
class BuiltTower:
    """A tower, what it is to minimize, and the gradients, averaged over all towers."""

    context: TowerContext
    handle: TowerTensorHandle
    inputs: Sequence[Any]
    objectives: Sequence[Objective]
    gradients: Sequence[Sequence[tuple[Any, Any]]]

    def apply(self) -> None:
        """Adds the updates of the variables to the graph."""
        with self.context.resumed():
            for objective, pairs in zip(self.objectives, self.gradients, strict=True):
                objective.optimizer.apply_gradients(pairs)

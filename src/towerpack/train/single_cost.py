"""Training one cost with one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack.input_source import InputSource
from towerpack.tower import TowerTensorHandle
from towerpack.tower.optimizer import Optimizer, as_optimizer
from towerpack.train.objective import Objective, checked_cost
from towerpack.train.tower_trainer import TowerTrainer


class SingleCostTrainer(TowerTrainer):
    """Minimizes the scalar that the tower function returns, over all trainable variables."""

    def setup_graph(
        self,
        input_signature: Sequence[Any],
        input: InputSource,
        get_cost_fn: Callable[..., Any],
        get_opt_fn: Callable[[], Any],
    ) -> None:
        """Makes the variables and traces the step."""
        self._get_opt_fn = get_opt_fn
        self._optimizers: list[Optimizer] = []
        self._made: list[Any] = []
        self.setup_towers(input_signature, input, get_cost_fn)

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizers[0]

    def make_optimizers(self) -> None:
        made = self._get_opt_fn()
        if any(made is optimizer for optimizer in self._made):
            raise ValueError(
                "every tower needs an optimizer of its own here, but get_opt_fn returned the same "
                "one again; let it make a new one in each call"
            )
        self._made.append(made)
        self._optimizers.append(as_optimizer(made))

    def optimizers_of(self, index: int) -> Sequence[Optimizer]:
        return [self._optimizers[index]]

    def objectives(self, tower: TowerTensorHandle) -> Sequence[Objective]:
        store = tower.context.store
        optimizer = self._optimizers[self.stores.index(store)]
        return [Objective(checked_cost(tower.output), list(store.trainable().values()), optimizer)]

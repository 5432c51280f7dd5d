"""Summaries asked for inside a tower."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.context import MovingSummary, TowerContext, get_current_tower_context
from towerpack.tower.store import VariableStore

EMA_SCOPE = "EMA"


def add_moving_summary(*tensors: Any, decay: float = 0.95) -> None:
    """Logs the moving average of scalars under their own names, once an epoch.

    Acts in the main training tower only; elsewhere it does nothing. The average is kept on the
    device and costs no fetch per step. It is debiased: after one step it is that step's value.
    """
    context = get_current_tower_context()
    if context is None:
        raise RuntimeError("add_moving_summary must be called inside a tower function")
    if not context.is_main_training_tower:
        return
    for tensor in tensors:
        if not tf.is_tensor(tensor):
            raise TypeError(f"expected tensors, one argument each, received {tensor!r}")
        if tensor.shape.rank != 0:
            raise ValueError(f"expected a scalar, received {tensor}; take its mean first")
        name = context.without_prefix(tensor.op.name)
        context.moving_summaries.append(MovingSummary(name, tensor, decay))


def update_moving_averages(context: TowerContext) -> dict[str, Any]:
    """Adds the updates of the averages to the step being traced; the averages by name."""
    averages = {}
    with context.store.scope():
        for name, tensor, decay in context.moving_summaries:
            averages[name] = MovingAverage(context.store, name, decay).update(tensor)
    return averages


class MovingAverage:
    """An exponential moving average in two local variables: the biased sum and its weight."""

    def __init__(self, store: VariableStore, name: str, decay: float):
        self.decay = decay
        self.total = self._variable(store, f"{EMA_SCOPE}/{name}/total")
        self.weight = self._variable(store, f"{EMA_SCOPE}/{name}/weight")

    @staticmethod
    def _variable(store: VariableStore, name: str) -> Any:
        return store.make(name, lambda: tf.zeros([]), trainable=False, local=True)

    def update(self, value: Any) -> MovingAverage:
        value = tf.cast(value, tf.float32)
        self.total.assign(self.decay * self.total + (1 - self.decay) * value)
        self.weight.assign(self.decay * self.weight + (1 - self.decay))
        return self

    def value(self) -> float:
        weight = float(self.weight.numpy())
        return float(self.total.numpy()) / weight if weight else float("nan")

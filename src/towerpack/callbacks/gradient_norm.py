"""How large the gradients are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback
from towerpack.tower.gradproc import global_norm


class GradientNorm(Callback):
    """Puts the global norm of the gradients at each trigger: its mean and maximum since the last.

    As `gradient_norm/mean` and `gradient_norm/max`, of the gradients that the optimizer got,
    averaged over the towers, before it clips them. It is computed inside every step, which costs
    little and does not break fusion.
    """

    def _setup_graph(self) -> None:
        self._total, self._max, self._count = (
            self.trainer.store.make(
                f"gradient_norm/{name}",
                # A sum in float32 loses digits over a long epoch, and a count stops at 2**24.
                lambda: tf.zeros([], tf.float64),
                trainable=False,
                local=True,
            )
            for name in ("total", "max", "count")
        )
        self.trainer.add_to_step(self._update)

    def _update(self, gradients: Sequence[tuple[Any, Any]]) -> None:
        norm = tf.cast(global_norm(tf.cast(g, tf.float32) for g, _ in gradients), tf.float64)
        self._total.assign_add(norm)
        self._count.assign_add(1)
        self._max.assign(tf.maximum(self._max, norm))

    def _trigger(self) -> None:
        count = float(self._count.numpy())
        if not count:
            return
        monitors = self.trainer.monitors
        monitors.put_scalar("gradient_norm/mean", float(self._total.numpy()) / count)
        monitors.put_scalar("gradient_norm/max", float(self._max.numpy()))
        for variable in (self._total, self._max, self._count):
            variable.assign(0)

    def _state(self) -> list[float]:
        return [float(v.numpy()) for v in (self._total, self._max, self._count)]

    def _restore(self, state: list[float]) -> None:
        for variable, value in zip((self._total, self._max, self._count), state, strict=True):
            variable.assign(value)

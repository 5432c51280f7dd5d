"""Training on several devices that do not wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.gradproc import scaled
from towerpack.train.built_tower import BuiltTower
from towerpack.train.devices import tower_devices
from towerpack.train.replication import OneTower
from towerpack.train.single_cost import SingleCostTrainer
from towerpack.train.step_graph import trace_loop


class ApartTowers(OneTower):
    """One tower in each traced function; which one is said before it is traced."""

    def __init__(self, devices: Sequence[str], factor: float):
        super().__init__(devices)
        self.count, self.factor = len(self.devices), factor
        self.index = 0

    def run(self, build: Any) -> list[BuiltTower]:
        with tf.device(self.devices[self.index]):
            return [build(self.index)]

    def average(self, gradients: Any, batch: Any) -> Any:
        if self.factor == 1:
            return gradients
        return tf.nest.map_structure(lambda g: scaled(g, self.factor), gradients)


class AsyncMultiGPUTrainer(SingleCostTrainer):
    """A tower on every GPU that applies its gradients to shared variables when it has them.

    No tower waits for another, so gradients may be of slightly older weights. A step is one update
    by each tower; towers run apart within a call of many steps and meet at its end. With
    `scale_gradient` the gradients are divided by the number of towers, so that a learning rate
    means the same as with a synchronous trainer. Results depend on timing and differ between runs.
    """

    def __init__(
        self, gpus: int | Sequence[int], scale_gradient: bool = True, **options: Any
    ) -> None:
        devices = tower_devices(gpus)
        factor = 1 / len(devices) if scale_gradient else 1.0
        self._towers = ApartTowers(devices, factor)
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="tower")
        self._tower_loops: list[Any] = []
        super().__init__(self._towers, **options)

    def _step_for(self, fetches: tuple[str, ...]) -> Any:
        self._towers.index = 0
        first = super()._step_for(fetches)
        if self.options.eager:
            return first

        loops = self._loops_of_others()  # traced now: a source must know who reads before a step

        def step() -> Any:
            others = [self._threads.submit(loop, tf.constant(1)) for loop in loops]
            finite, fetched = first()
            return tf.reduce_all([finite, *(other.result()[1] for other in others)]), fetched

        return step

    def _eager_step(self, fetches: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
        """The towers in turn, since a debugger follows one line at a time."""
        finite, fetched = super()._eager_step(fetches)
        for index in range(1, self._towers.count):
            self._towers.index = index
            finite = tf.logical_and(finite, super()._eager_step(())[0])
        self._towers.index = 0
        return finite, fetched

    def _loop_for(self, way: str) -> Any:
        self._towers.index = 0
        first = super()._loop_for(way)
        if first is None:
            return None

        def loop(count: Any) -> Any:
            others = [self._threads.submit(other, count) for other in self._loops_of_others()]
            done, finite = first(count)
            return done, tf.reduce_all([finite, *(other.result()[1] for other in others)])

        return loop

    def _loops_of_others(self) -> list[Any]:
        if not self._tower_loops:
            for index in range(1, self._towers.count):
                self._towers.index = index
                self._tower_loops.append(trace_loop(self._build_step, self._keeper, lambda: None))
            self._towers.index = 0
        return self._tower_loops

    def close(self) -> None:
        super().close()
        self._threads.shutdown()

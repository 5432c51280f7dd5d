"""Towers on several devices: where they run, whose variables they use, how gradients meet.

The engine is `tf.distribute.MirroredStrategy`: it runs one replica on each device and reduces
gradients between them, on GPUs through NCCL. Variables are plain ones all the same: either all
towers share those of the first (`SharedVariables`), or each has its own copies (`OwnVariables`).
So whatever works on one device, any optimizer, any way to make a variable, works on several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower import VariableStore
from towerpack.tower.gradproc import scaled
from towerpack.train.built_tower import BuiltTower

BuildTower = Callable[[int], BuiltTower]


class OneTower:
    """One tower, on the device that is named, or where TensorFlow puts it."""

    count = 1

    def __init__(self, devices: Sequence[str] = ()):
        self.devices = list(devices)

    def stores(self, main: VariableStore) -> list[VariableStore]:
        """The store of each tower that makes variables."""
        return [main]

    def run(self, build: BuildTower) -> list[BuiltTower]:
        """Builds every tower into the graph being traced."""
        with tf.device(self.devices[0] if self.devices else None):
            return [build(0)]

    def average(self, gradients: Any, batch: Any) -> Any:
        """The mean of the gradients over all towers; called while one is built."""
        return gradients


class MirroredTowers(OneTower):
    """A tower on each device, in step."""

    def __init__(self, devices: Sequence[str], reduction: Any = None, average: bool = True):
        super().__init__(devices)
        self.count = len(self.devices)
        kinds = tf.distribute.ReduceOp
        self._reduce = kinds.MEAN if average else kinds.SUM
        self.strategy = tf.distribute.MirroredStrategy(self.devices, cross_device_ops=reduction)

    def run(self, build: BuildTower) -> list[BuiltTower]:
        built: dict[int, BuiltTower] = {}
        # The strategy builds each tower in a thread of its own, where Keras forgets its policy.
        policy = tf.keras.mixed_precision.dtype_policy()

        def replica() -> None:
            tf.keras.mixed_precision.set_dtype_policy(policy)
            replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
            index = int(tf.get_static_value(replica_id))
            built[index] = build(index)

        self.strategy.run(replica)
        return [built[index] for index in range(self.count)]

    def average(self, gradients: Any, batch: Any) -> Any:
        """Towers count by the size of their batches, so that a short one does not weigh more."""
        replica = tf.distribute.get_replica_context()
        if batch is not None:
            batch = tf.cast(batch, tf.float32)
            total = replica.all_reduce(tf.distribute.ReduceOp.SUM, batch)
            share = batch * self.count / total
            gradients = tf.nest.map_structure(lambda g: scaled(g, share), gradients)
        return replica.all_reduce(self._reduce, gradients)


class SharedVariables(MirroredTowers):
    """All towers read the variables of the first; the averaged gradients are applied once."""


class OwnVariables(MirroredTowers):
    """Each tower has its own copies, and applies the averaged gradients to them."""

    def stores(self, main: VariableStore) -> list[VariableStore]:
        stores = [main] + [VariableStore() for _ in range(1, self.count)]
        for store in stores[1:]:
            store.seed = main.seed
        return stores


def towers_on(devices: Sequence[str], several: Callable[[], OneTower]) -> OneTower:
    """Towers on these devices: `several()`, or one, which nobody has to keep in step."""
    return OneTower(devices) if len(devices) == 1 else several()


def reduction_for(mode: str | None, devices: Sequence[str]) -> Any:
    """TensorFlow's reduction between devices by its name; None lets TensorFlow choose."""
    kinds: dict[str, Callable[[], Any]] = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "cpu": lambda: tf.distribute.ReductionToOneDevice("/cpu:0"),
        "gpu": lambda: tf.distribute.ReductionToOneDevice(devices[0]),
    }
    if mode is None:
        return None if "gpu" in devices[0] else kinds["cpu"]()
    if mode not in kinds:
        raise ValueError(f"expected mode to be one of {sorted(kinds)} or None, received {mode!r}")
    if mode == "nccl" and "gpu" not in devices[0]:
        raise ValueError("mode='nccl' needs GPUs, and there are none; use mode=None or 'cpu'")
    return kinds[mode]()

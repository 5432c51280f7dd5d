"""Which devices towers run on, whose variables they use, how gradients are averaged.

The engine is `tf.distribute.MirroredStrategy`: it runs one replica on each device and reduces
gradients between them, on GPUs through NCCL. The variables are plain ones: either all towers share
those of the first, or each has its own copies (`own_variables`). So whatever works on one device,
any optimizer and any way to make a variable, works on several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback
from towerpack.core import logger
from towerpack.tower import VariableStore
from towerpack.tower.gradproc import scaled
from towerpack.train.builder import BuiltTower

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
        """Builds every tower into the graph that is being traced."""
        with tf.device(self.devices[0] if self.devices else None):
            return [build(0)]

    def average(self, gradients: Any, batch: Any) -> Any:
        """The mean of the gradients over all towers; called while one is built."""
        return gradients

    @contextlib.contextmanager
    def at(self, index: int) -> Iterator[None]:
        """While open, towers that do not run together are built one by one: this one."""
        yield


class MirroredTowers(OneTower):
    """A tower on each device, in step.

    They share the variables of the first, so the averaged gradients are applied once; or each
    (`own_variables`) has its own copies, and applies the averaged gradients to them.
    """

    def __init__(
        self,
        devices: Sequence[str],
        reduction: Any = None,
        average: bool = True,
        own_variables: bool = False,
    ):
        super().__init__(devices)
        self.count = len(self.devices)
        kinds = tf.distribute.ReduceOp
        self._reduce = kinds.MEAN if average else kinds.SUM
        self._own_variables = own_variables
        self.strategy = tf.distribute.MirroredStrategy(self.devices, cross_device_ops=reduction)

    def stores(self, main: VariableStore) -> list[VariableStore]:
        if not self._own_variables:
            return [main]
        stores = [main] + [VariableStore() for _ in range(1, self.count)]
        for store in stores[1:]:
            store.seed = main.seed
        return stores

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


class AsyncTowers(OneTower):
    """One tower in each traced function: the one that `at` selects while it is traced."""

    def __init__(self, devices: Sequence[str], factor: float):
        super().__init__(devices)
        self.count, self.factor = len(self.devices), factor
        self._index = 0

    @contextlib.contextmanager
    def at(self, index: int) -> Iterator[None]:
        before, self._index = self._index, index
        try:
            yield
        finally:
            self._index = before

    def run(self, build: BuildTower) -> list[BuiltTower]:
        with tf.device(self.devices[self._index]):
            return [build(self._index)]

    def average(self, gradients: Any, batch: Any) -> Any:
        if self.factor == 1:
            return gradients
        return tf.nest.map_structure(lambda g: scaled(g, self.factor), gradients)


class Copies:
    """The stores of all towers; the first is the one that callbacks and checkpoints see.

    All towers apply the same gradients to the same values, so the copies stay equal. What is
    changed from outside in the first is copied: scalars (a learning rate) before every call, and
    everything before training and before every epoch.
    """

    def __init__(self, stores: Sequence[VariableStore]):
        self.main, *self.others = stores
        self._copied: list[str] = []

    def copy_scalars(self) -> None:
        """Adds to the graph: every tower's scalars get the values of the first."""
        self._copied = self._scalars()
        self._copy(self._copied)

    def copies_all_scalars(self) -> bool:
        """Whether `copy_scalars` knew all of them; the trace after it may have made some."""
        return self._copied == self._scalars()

    def copy_all(self) -> None:
        self._copy(list(self.main.variables))

    def _scalars(self) -> list[str]:
        variables = self.main.variables.items()
        return [n for n, v in variables if v.shape.rank == 0 and not v.trainable]

    def _copy(self, names: Sequence[str]) -> None:
        for store in self.others:
            for name in names:
                if name in store:
                    store[name].assign(self.main[name])

    def check_own(self, index: int, variables: Iterable[Any]) -> None:
        """Refuses variables that a tower should own but shares with the first."""
        if index == 0 or not self.others:
            return
        shared = sorted(v.name.removesuffix(":0") for v in variables if self.main.has(v))
        if shared:
            raise ValueError(
                f"every tower has variables of its own here, but {shared} were made outside of "
                "the tower function, so that there is only one of them. Make them inside of it, "
                "or use SyncMultiGPUTrainerParameterServer, where towers share variables"
            )

    def callbacks(self) -> list[Callback]:
        """What a trainer adds to its callbacks."""
        return [_CopyEveryEpoch(self)] if self.others else []


class _CopyEveryEpoch(Callback):
    chief_only = False

    def __init__(self, copies: Copies):
        self._copy = tf.function(copies.copy_all, autograph=False)

    def _before_epoch(self) -> None:
        self._copy()


def towers_on(devices: Sequence[str], several: Callable[[], OneTower]) -> OneTower:
    """Towers on these devices: `several()`, or one, which needs no averaging."""
    return OneTower(devices) if len(devices) == 1 else several()


def tower_devices(gpus: int | Sequence[int]) -> list[str]:
    """The devices for towers: GPUs by number (n means the first n).

    Where there is no GPU, logical CPU devices stand in for them, so that the same script runs and
    can be tested. They are made here if TensorFlow has not been used yet.
    """
    numbers = list(range(gpus)) if isinstance(gpus, int) else list(gpus)
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ValueError(
            f"expected a number of GPUs or a list of different ones, received {gpus!r}"
        )
    present = get_num_gpu()
    if present:
        if max(numbers) >= present:
            raise ValueError(f"expected GPUs of 0 to {present - 1}, received {numbers}")
        return [f"/gpu:{number}" for number in numbers]
    _make_logical_cpus(max(numbers) + 1)
    logger.info("there is no GPU: the CPU stands in for %d", len(numbers))
    return [f"/cpu:{number}" for number in numbers]


def get_num_gpu() -> int:
    """How many GPUs TensorFlow can use here."""
    return len(tf.config.get_visible_devices("GPU"))


def device_names(devices: Sequence[str]) -> tuple[str, ...]:
    """Devices by their usual names, GPUs with their model; if none are given, the default one.

    >>> device_names(["/cpu:0", "/cpu:1"])
    ('CPU:0', 'CPU:1')
    """
    if not devices:
        devices = ["/gpu:0"] if get_num_gpu() else ["/cpu:0"]
    models = {
        f"GPU:{number}": tf.config.experimental.get_device_details(gpu).get("device_name", "")
        for number, gpu in enumerate(tf.config.get_visible_devices("GPU"))
    }
    names = [device.removeprefix("/").upper() for device in devices]
    return tuple(f"{name} {models.get(name, '')}".strip() for name in names)


def _make_logical_cpus(count: int) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        configured = tf.config.get_logical_device_configuration(cpu) or []
        if len(configured) < count:
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
            tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError:  # TensorFlow is in use: its devices cannot change any more
        there = len(tf.config.list_logical_devices("CPU"))
        if there >= count:
            return
        raise ValueError(
            f"expected {count} devices, received {there}: there is no GPU, and TensorFlow was used "
            "before logical CPU devices could be made. Make the trainer first, or call "
            "tf.config.set_logical_device_configuration at the start"
        ) from None

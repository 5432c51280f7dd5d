"""Training one cost on several devices, with averaged gradients or without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.train.devices import AsyncTowers, MirroredTowers, tower_devices, towers_on
from towerpack.train.runner import AsyncRunner
from towerpack.train.tower_trainer import SingleCostTrainer

FEW_GPUS = 2  # of which the first can hold the variables; more would compete for its link


class SyncMultiGPUTrainerParameterServer(SingleCostTrainer):
    """A tower on every GPU; all share one set of variables, and gradients are averaged.

    Each tower uses a batch of its own, so the total batch is batch x towers; N towers of batch B
    train like one of N x B. `gpus` is a number or a list; `ps_device` is 'cpu' or 'gpu' (the first
    one), by default 'gpu' for up to two.
    """

    def __init__(
        self, gpus: int | Sequence[int], ps_device: str | None = None, **options: Any
    ) -> None:
        devices = tower_devices(gpus)
        if ps_device not in (None, "cpu", "gpu"):
            raise ValueError(
                f"expected ps_device to be 'cpu', 'gpu' or None, received {ps_device!r}"
            )
        ps_device = ps_device or ("gpu" if len(devices) <= FEW_GPUS else "cpu")
        self.ps_device = devices[0] if ps_device == "gpu" else "/cpu:0"
        reduction = tf.distribute.ReductionToOneDevice(self.ps_device)
        towers = towers_on(devices, lambda: MirroredTowers(devices, reduction))
        super().__init__(towers, **options)

    def variables_on(self, index: int) -> Any:
        return tf.device(self.ps_device)


class SyncMultiGPUTrainer(SyncMultiGPUTrainerParameterServer):
    """A tower on every GPU, with shared variables on the CPU."""

    def __init__(self, gpus: int | Sequence[int], **options: Any) -> None:
        super().__init__(gpus, ps_device="cpu", **options)


class SyncMultiGPUTrainerReplicated(SingleCostTrainer):
    """A tower with its own variables on every GPU; gradients are averaged between them.

    Each tower uses a batch of its own, so the total batch is batch x towers. `mode` says how
    gradients are averaged: 'nccl', 'hierarchical', 'cpu' or 'gpu' (on one device), None for the
    best. With `average=False` they are summed. Checkpoints and callbacks see the first tower's
    variables; the copies follow them before training and every epoch.
    """

    def __init__(
        self,
        gpus: int | Sequence[int],
        average: bool = True,
        mode: str | None = None,
        **options: Any,
    ) -> None:
        devices = tower_devices(gpus)
        reduction = reduction_for(mode, devices)
        towers = towers_on(
            devices, lambda: MirroredTowers(devices, reduction, average, own_variables=True)
        )
        super().__init__(towers, **options)


class AsyncMultiGPUTrainer(SingleCostTrainer):
    """A tower on every GPU that applies its gradients to shared variables when it has them.

    No tower waits for another, so gradients may be of slightly older weights. A step is one update
    by each tower; towers run apart within a call of many steps and meet at its end. With
    `scale_gradient` the gradients are divided by the number of towers, so that a learning rate
    means the same as with a synchronous trainer. Results depend on timing and differ between runs.
    """

    runner_class = AsyncRunner

    def __init__(
        self, gpus: int | Sequence[int], scale_gradient: bool = True, **options: Any
    ) -> None:
        devices = tower_devices(gpus)
        factor = 1 / len(devices) if scale_gradient else 1.0
        super().__init__(AsyncTowers(devices, factor), **options)


def reduction_for(mode: str | None, devices: Sequence[str]) -> Any:
    """TensorFlow's reduction between devices by its name; None lets TensorFlow choose."""
    kinds: dict[str, Callable[[], Any]] = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "cpu": lambda: tf.distribute.ReductionToOneDevice("/cpu:0"),
        "gpu": lambda: tf.distribute.ReductionToOneDevice(devices[0]),
    }
    if mode is None:
        # TensorFlow's choice for CPUs confuses the reductions of two strategies in one process.
        return None if "gpu" in devices[0] else kinds["cpu"]()
    if mode not in kinds:
        raise ValueError(f"expected mode to be one of {sorted(kinds)} or None, received {mode!r}")
    if mode == "nccl" and "gpu" not in devices[0]:
        raise ValueError("mode='nccl' needs GPUs, and there are none; use mode=None or 'cpu'")
    return kinds[mode]()

"""Training one cost on several devices of one machine, in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.train.config import TrainConfig
from towerpack.train.devices import tower_devices
from towerpack.train.old_scripts import TrainsItsConfig, all_gpus
from towerpack.train.replication import OwnVariables, SharedVariables, reduction_for, towers_on
from towerpack.train.single_cost import SingleCostTrainer

FEW_GPUS = 2  # up to which one of them holds the variables; more would compete for its link


class SyncMultiGPUTrainerParameterServer(SingleCostTrainer):
    """A tower on every GPU; all share one set of variables, and gradients are averaged.

    Each tower takes a batch of its own, so the total batch is batch x towers; N towers of batch B
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
        towers = towers_on(devices, lambda: SharedVariables(devices, reduction))
        super().__init__(towers, **options)

    def _device(self, index: int) -> Any:
        return tf.device(self.ps_device)


class SyncMultiGPUTrainer(TrainsItsConfig, SyncMultiGPUTrainerParameterServer):
    """A tower on every GPU, with shared variables on the CPU."""

    def __init__(self, gpus: int | Sequence[int] | TrainConfig, **options: Any) -> None:
        config, gpus = (gpus, all_gpus()) if isinstance(gpus, TrainConfig) else (None, gpus)
        super().__init__(gpus, ps_device="cpu", **options)
        self.config = config


class SyncMultiGPUTrainerReplicated(SingleCostTrainer):
    """A tower with its own variables on every GPU; gradients are averaged between them.

    Each tower takes a batch of its own, so the total batch is batch x towers. `mode` says how
    gradients meet: 'nccl', 'hierarchical', 'cpu' or 'gpu' (on one device), None for the best.
    With `average=False` they are summed. Checkpoints and callbacks see the first tower's
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
        towers = towers_on(devices, lambda: OwnVariables(devices, reduction, average))
        super().__init__(towers, **options)

"""The next batch on the device, while this one is worked on."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.input_source.base import FeedfreeInput, InputSource
from towerpack.input_source.proxy import ProxyInput

_numbers = itertools.count()  # staging areas are found by name, in all graphs of the process


class StagingInput(ProxyInput):
    """Copies the next batches to the device while the step works on this one.

    In order, every batch once, and the position stays that of the batches that were taken. Worth
    its while where the copy takes time, on GPUs. Each read takes the oldest staged batch of its
    tower's device and stages the next one of the input there. Call `wait` before each call of a
    step, as trainers do: it stages the first batches.

    At the end of the data, or when it fails, the staged batches are not worked on any more: use it
    for endless input, as in training.

    Args:
        input: a source that several towers can read: not a `FeedInput`, nor a `StagingInput`.
        nr_stage: how many batches are kept on each device.
        device: where; by default on the device of the tower that reads.
    """

    def __init__(self, input: InputSource, nr_stage: int = 1, device: str | None = None):
        super().__init__(input)
        if isinstance(input, StagingInput) or not isinstance(input, FeedfreeInput):
            raise TypeError(
                f"expected a source that the graph reads by itself, and not staged already, "
                f"received a {type(input).__name__}; QueueInput is one"
            )
        if nr_stage < 1:
            raise ValueError(f"expected a positive nr_stage, received {nr_stage}")
        self.nr_stage, self.device = nr_stage, device
        self._areas: dict[str, dict[str, Any]] = {}
        self._missing: list[str] = []  # a device for each batch that is still to be staged first
        self._latest: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def setup(self, signature: Sequence[Any]) -> None:
        super().setup(signature)
        self._clear()
        self._areas.clear()
        self._missing = []

    def get_input_tensors(self) -> list[Any]:
        device = self.device or _device_of_scope()
        area = self._area(device)
        if tf.executing_eagerly():
            while self._missing:
                self._stage_first()
            return self._take_and_stage(device, area)[0]
        graph = v1.get_default_graph()
        # Reads of one graph one after another: in the order of the towers, and each with the batch
        # that the one before has staged.
        before = self._latest.get(graph)
        with tf.control_dependencies([before] if before is not None else []):
            tensors, staged = self._take_and_stage(device, area)
        self._latest[graph] = staged
        return tensors

    def _take_and_stage(self, device: str, area: dict[str, Any]) -> tuple[list[Any], Any]:
        with tf.device(device):
            there = tf.raw_ops.StageSize(**area)
            message = "StagingInput: expected wait() before the step, which stages the first batch"
            checked = tf.debugging.Assert(there > 0, [message])
            with tf.control_dependencies([] if checked is None else [checked]):
                taken = tf.raw_ops.Unstage(**area)
        with tf.control_dependencies([] if tf.executing_eagerly() else [taken[0].op]):
            following = self.input.get_input_tensors()
        with tf.device(device):
            staged = tf.raw_ops.Stage(values=following, **_names(area))
        tensors = [
            tf.ensure_shape(tensor, like.shape)
            for tensor, like in zip(taken, following, strict=True)
        ]
        return tensors, staged

    def _area(self, device: str) -> dict[str, Any]:
        if device not in self._areas:
            self._areas[device] = {
                "dtypes": [spec.dtype for spec in self.signature],
                "shared_name": f"towerpack_staging_{next(_numbers)}",
            }
            if self._staged == 0:
                # Round by round over the devices: the order in which the towers will take them.
                self._missing = list(self._areas) * self.nr_stage
            else:
                self._missing += [device] * self.nr_stage
        return self._areas[device]

    @property
    def _staged(self) -> int:
        """How many batches have left the input and wait on the devices."""
        return self.input.held

    def wait(self, limit: int, taken: int, timeout: float | None = None) -> int:
        while self._missing:  # one by one: the queue may have room for fewer
            if not self.input.wait(1, taken + self._staged, timeout):
                return 0
            self._stage_first()
        return self.input.wait(limit, taken + self._staged, timeout)

    def uniform(self, limit: int, taken: int) -> int:
        """The staged batches come first, and are as far as known like those behind them."""
        self.wait(limit, taken)
        return min(limit, self.input.uniform(limit + self._staged, taken))

    def _stage_first(self) -> None:
        """Stages one of the batches that must be there before a step can take the first."""
        following = self.input.get_input_tensors()
        device = self._missing.pop(0)
        with tf.device(device):
            tf.raw_ops.Stage(values=following, **_names(self._areas[device]))
        self.input.held += 1

    def reset_state(self) -> None:
        self._clear()
        self.input.reset_state()

    def close(self) -> None:
        super().close()
        self._clear()

    def _clear(self) -> None:
        for device, area in self._areas.items():
            with tf.device(device):
                tf.raw_ops.StageClear(**area)
        self._missing = list(self._areas) * self.nr_stage
        self.input.held = 0


def _names(area: dict[str, Any]) -> dict[str, Any]:
    """Stage knows the dtypes by its values."""
    return {"shared_name": area["shared_name"]}


def _device_of_scope() -> str:
    """The device on which an operation would be placed here, by its short name."""
    full = tf.constant(0.0).device if tf.executing_eagerly() else tf.no_op().device
    spec = tf.DeviceSpec.from_string(full)
    default = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return f"/device:{spec.device_type or default}:{spec.device_index or 0}"

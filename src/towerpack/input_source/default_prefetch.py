"""How data is prefetched when nothing else is said."""

from __future__ import annotations

from typing import Any

from towerpack.input_source.base import FeedfreeInput, InputSource
from towerpack.input_source.queue import QueueInput
from towerpack.input_source.staging import StagingInput


def apply_default_prefetch(input_source_or_dataflow: Any, trainer: Any) -> InputSource:
    """The input as a trainer best reads it.

    A flow is read by a `QueueInput`, for every trainer. A trainer with several GPUs gets that, or
    any other source that it was given, behind a `StagingInput`.
    """
    source = input_source_or_dataflow
    if not isinstance(source, InputSource):
        source = QueueInput(source)
    devices = getattr(getattr(trainer, "replication", None), "devices", ())
    if len(devices) > 1 and not isinstance(source, FeedfreeInput):
        raise TypeError(
            f"expected a source that several towers can read, such as QueueInput, received a "
            f"{type(source).__name__}, which serves one"
        )
    on_gpus = len(devices) > 1 and all("gpu" in device.lower() for device in devices)
    if on_gpus and not isinstance(source, StagingInput):
        return StagingInput(source)
    return source

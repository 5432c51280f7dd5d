"""TensorFlow's own threads, and the processors they share with those who make the data."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import v1
from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.dataflow import DataFlow
from towerpack.dataflow.parallel.stage import ProcessStage
from towerpack.dataflow.statistics import walk
from towerpack.monitor.environment import available_cores
from towerpack.train.devices import get_num_gpu


def share_processors_with(flow: DataFlow | None) -> bool:
    """Lets TensorFlow's idle threads sleep at once if workers of the flow need the processors.

    By itself each of them looks around for new work for some 0.1 ms before it sleeps. Steps of a
    small compiled model are faster for it, and most others are not; but worker processes on the
    same processors get less done. So they sleep where the flow has half as many workers as there
    are processors, or more. On a machine with GPUs, where that was not measured, TensorFlow is left
    as it is. Returns whether they sleep.
    """
    if 2 * _worker_processes(flow) < available_cores() or get_num_gpu():
        return False
    context = _unused_context()
    if context is None:
        logger.debug("TensorFlow was used before the trainer was set up: its idle threads spin")
        return False
    config = v1.ConfigProto()
    if context._config is not None:
        config.CopyFrom(context._config)
    config.experimental.disable_thread_spinning = True
    context._config = config
    return True


def _worker_processes(flow: DataFlow | None) -> int:
    stages = walk(flow) if flow is not None else []
    return sum(stage.num_proc for stage in stages if isinstance(stage, ProcessStage))


def _unused_context() -> Any:
    """What TensorFlow will start with; None if it has started, or keeps that somewhere else.

    It has an option for this (`tf.compat.v1.ConfigProto`) and a function that takes such options,
    `tf.compat.v1.enable_eager_execution`, but calls that itself while it is imported.
    """
    context = require("tensorflow.python.eager.context", extra="tf").context()
    known = hasattr(context, "_config") and getattr(context, "_context_handle", True) is None
    return context if known else None

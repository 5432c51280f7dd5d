"""TensorFlow's own threads, and the processors they share with those who make the data."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.core.optional import require


def let_idle_threads_sleep() -> bool:
    """Lets TensorFlow's threads sleep as soon as they have nothing to do; whether they will.

    By itself each of them looks around for new work for some 0.1 ms before it sleeps. In training
    nothing is won by that, but where the processors are also busy with making the data, these get
    less done. On a GPU, where that was not measured, TensorFlow is left as it is; and so it is
    when it has been used already, since then its threads are there.
    """
    if tf.config.list_physical_devices("GPU"):
        return False
    context = _unused_context()
    if context is None:
        logger.debug("TensorFlow was used before the trainer was made: its idle threads spin")
        return False
    config = v1.ConfigProto()
    if context._config is not None:
        config.CopyFrom(context._config)
    config.experimental.disable_thread_spinning = True
    context._config = config
    return True


def _unused_context() -> Any:
    """What TensorFlow will start with; None if it has started, or keeps that somewhere else.

    It has an option for this (`tf.compat.v1.ConfigProto`) and a function that takes such options,
    `tf.compat.v1.enable_eager_execution`, but calls that itself while it is imported.
    """
    context = require("tensorflow.python.eager.context", extra="tf").context()
    known = hasattr(context, "_config") and getattr(context, "_context_handle", True) is None
    return context if known else None

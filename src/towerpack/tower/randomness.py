"""Random numbers in a tower that depend on the model's seed and the step, and on nothing else.

Stateful random ops of TensorFlow count their calls inside the kernel: a run that goes on after a
restart, many steps in one call, or XLA would draw other numbers. These do not.
"""

from __future__ import annotations

import zlib
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.context import get_current_tower_context
from towerpack.tower.global_step import get_global_step_var


def step_seed(name: str) -> Any:
    """A seed for `tf.random.stateless_*`: another one for each step, tower, name and call.

    Only while a tower is built for training; `name` says what the numbers are for.
    """
    context = get_current_tower_context()
    if context is None or not context.is_training:
        raise RuntimeError("the step's seed is known only in a tower that is built for training")
    context.seeds_used += 1
    key = f"{context.store.seed}/{context.index}/{name}/{context.seeds_used}"
    step = tf.cast(get_global_step_var().read_value(), tf.int32)
    return tf.stack([tf.constant(zlib.crc32(key.encode()) & 0x7FFFFFFF, tf.int32), step])

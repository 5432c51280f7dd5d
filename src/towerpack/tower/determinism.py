"""Repeatable runs: seeds of programs and of steps, and deterministic operations."""

from __future__ import annotations

import contextlib
import random
import secrets
import zlib
from collections.abc import Iterator
from typing import Any

from tensorflow.python.framework import config as _config  # a test reports if it disappears

from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.tower.context import get_current_tower_context
from towerpack.tower.store import get_global_step_var

NO_SEED = 87654321  # reported by TensorFlow as its global seed while none is set


def set_random_seed(seed: int) -> None:
    """Makes the runs of this program repeatable: equal seeds give equal runs, bit for bit.

    Call it first, before a model or a layer is created. It seeds TensorFlow, Keras, numpy and
    Python, and switches to deterministic operations. This costs some speed, and trainers then
    decide without measuring how to run steps. Flows of data have their own seeds, which are fixed
    by default. The machine and its number of threads must be the same.

        towerpack.set_random_seed(7)

    A program that does not call it gets a random seed, which is logged.
    """
    tf.keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()


def op_determinism_enabled() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism()` was called.

    TensorFlow has no public function for this. The private one is used only here.
    """
    return bool(_config.is_op_determinism_enabled())


def drawn_seed() -> int | None:
    """A random seed, which is logged; None if the program has set TensorFlow's seed."""
    if _global_seed() is not None:
        return None
    seed = secrets.randbelow(2**31 - 1)
    logger.info("the seed of this run is %d: towerpack.set_random_seed(%d) repeats it", seed, seed)
    return seed


@contextlib.contextmanager
def drawing_from(seed: int | None) -> Iterator[None]:
    """While open, weights and operations are created as after `set_random_seed(seed)`.

    Keras draws the seeds of its layers from Python's generator, which then continues where it was.
    With None nothing changes.
    """
    state = random.getstate()
    if seed is not None:
        random.seed(seed)
    try:
        with tracing_with(seed):
            yield
    finally:
        if seed is not None:
            random.setstate(state)


@contextlib.contextmanager
def tracing_with(seed: int | None) -> Iterator[None]:
    """While open, TensorFlow has this global seed; afterwards it has the one it had before.

    With None, or if this seed is set already, nothing changes.
    """
    before = _global_seed()
    if seed is None or before == seed:
        yield
        return
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(before)


def seed_of_rank(seed: int | None, rank: int) -> int | None:
    """A global seed for the operations of a rank: stateful ones draw other numbers on each.

    `seed` is that of the run, or None if the program has set one. The first rank has that itself.
    """
    if not rank:
        return seed
    base = _global_seed() if seed is None else seed
    return None if base is None else (base + rank) % (2**31 - 1)


def _global_seed() -> int | None:
    with tf.init_scope():
        seed, _ = v1.get_seed(1)
    return None if seed == NO_SEED else seed


def step_seed(name: str) -> Any:
    """A seed for `tf.random.stateless_*`: different for each step, tower, name and call.

    It depends only on these and the model's seed. The stateful random operations of TensorFlow
    count their calls inside the kernel, so a resumed run, several steps in one call, or XLA would
    draw other numbers. `name` says what the numbers are for. Only for towers built for training.
    """
    context = get_current_tower_context()
    if context is None or not context.is_training:
        raise RuntimeError("the step's seed is known only in a tower that is built for training")
    context.seeds_used += 1
    key = f"{context.store.seed}/{context.index}/{name}/{context.seeds_used}"
    step = tf.cast(get_global_step_var().read_value(), tf.int32)
    return tf.stack([tf.constant(zlib.crc32(key.encode()) & 0x7FFFFFFF, tf.int32), step])

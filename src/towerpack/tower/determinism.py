"""Repeatable runs: the seed of a program, and whether operations are deterministic."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterator

from tensorflow.python.framework import config as _config  # tests notice when it has gone

from towerpack._tensorflow import tf, v1
from towerpack.core import logger

NO_SEED = 87654321  # what TensorFlow reports as its global seed while none is set


def set_random_seed(seed: int) -> None:
    """Makes the runs of this program repeatable: equal seeds give equal runs, bit for bit.

    Call it first, before a model or a layer is made. It seeds TensorFlow, Keras, numpy and Python,
    and switches to deterministic operations, which costs some speed: trainers then decide how to
    run steps without measuring. Flows of data have seeds of their own, which are fixed by default.
    The machine and its number of threads must be the same.

        towerpack.set_random_seed(7)

    A program that does not call it gets a seed by chance, which is logged.
    """
    tf.keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()


def op_determinism_enabled() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism()` was called.

    TensorFlow has no public question for it; the private one stands here alone.
    """
    return bool(_config.is_op_determinism_enabled())


def drawn_seed() -> int | None:
    """A seed by chance, which is logged; None if the program has set TensorFlow's."""
    if _global_seed() is not None:
        return None
    seed = secrets.randbelow(2**31 - 1)
    logger.info("the seed of this run is %d: towerpack.set_random_seed(%d) repeats it", seed, seed)
    return seed


@contextlib.contextmanager
def drawing_from(seed: int | None) -> Iterator[None]:
    """While open, weights and operations are made as after `set_random_seed(seed)`.

    Afterwards Python's generator, from which Keras draws the seeds of its layers, continues where
    it was. With None nothing changes.
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
    """While open, TensorFlow has this global seed; afterwards it has none again.

    With None, or where it is open already, nothing changes.
    """
    if seed is None or _global_seed() == seed:
        yield
        return
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(None)


def _global_seed() -> int | None:
    """TensorFlow's global seed."""
    with tf.init_scope():
        seed, _ = v1.get_seed(1)
    return None if seed == NO_SEED else seed

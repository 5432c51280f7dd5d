"""How XLA compiles steps."""

from __future__ import annotations

import functools
import os

from towerpack._tensorflow import tf

FLAGS = "XLA_FLAGS"
SCHEDULER = "--xla_cpu_enable_concurrency_optimized_scheduler"


@functools.cache
def settle_xla() -> None:
    """Has XLA read its flags, which it does once, when a process first compiles something.

    Its CPU compiler orders operations so that many can run at the same time, at the cost of memory.
    A training step on a few cores is quicker without: one of a small dense network takes three
    quarters of the processor's time. What the user has set, or compiled before, stays.
    """
    given = os.environ.get(FLAGS)
    if given is not None and SCHEDULER in given:
        return
    os.environ[FLAGS] = f"{given or ''} {SCHEDULER}=false".strip()
    try:
        tf.function(lambda: tf.zeros([]) + 1, jit_compile=True, autograph=False)()
    finally:  # other libraries, and other processes, may have an XLA that does not know the flag
        if given is None:
            del os.environ[FLAGS]
        else:
            os.environ[FLAGS] = given

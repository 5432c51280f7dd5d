"""State of Keras layers in towers after the first: moving averages and seeds.

Towers may share their variables. Each of them calls `BatchNormalization`, whose averages must move
once a step, and `Dropout`, whose masks must differ between towers. Keras updates state through
`keras.Variable.assign` and draws seeds by `keras.random.SeedGenerator.next`. These two methods are
wrapped, once in a process. In first towers and outside of towers the wrappers change nothing.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.keras_names import in_layer_call

# Between the seeds of two towers. Keras draws seeds below 1e9 and reads them as 32 bits.
SEED_STRIDE = 1_000_003

_local = threading.local()
_installing = threading.Lock()


@contextlib.contextmanager
def state_of_later_tower(number: int, updates_state: bool) -> Iterator[None]:
    """While open, Keras layers called in this thread belong to a tower other than the first.

    They draw other random numbers for each `number`. Without `updates_state` they assign nothing,
    because the first tower, which has the same variables, does.
    """
    with _installing:
        _wrap_assign(tf.keras.Variable)
        _wrap_next(tf.keras.random.SeedGenerator)
    _local.tower = number, updates_state
    try:
        yield
    finally:
        _local.tower = None


def _wrap_assign(variable_class: Any) -> None:
    original = variable_class.assign
    if hasattr(original, "of_towerpack"):
        return

    @functools.wraps(original)
    def assign(variable: Any, value: Any) -> Any:
        tower = getattr(_local, "tower", None)
        if tower is not None and not tower[1] and in_layer_call():
            return value
        return original(variable, value)

    assign.of_towerpack = True  # type: ignore[attr-defined]
    variable_class.assign = assign


def _wrap_next(generator_class: Any) -> None:
    original = generator_class.next
    if hasattr(original, "of_towerpack"):
        return

    @functools.wraps(original)
    def draw(generator: Any, *args: Any, **kwargs: Any) -> Any:
        seed = original(generator, *args, **kwargs)
        tower = getattr(_local, "tower", None)
        if tower is None:
            return seed
        return seed + tf.constant([tower[0] * SEED_STRIDE, 0], seed.dtype)

    draw.of_towerpack = True  # type: ignore[attr-defined]
    generator_class.next = draw

"""Names of Keras layers that are made inside a tower function.

Keras numbers layers without a name in the order in which the process makes them, so that a layer
made in every call of the tower function would have another name, and other variables, each time.
While a tower is built the numbers begin anew. Keras has no public call for that: this file is the
only one that reaches into it, and does nothing when the place is gone (a test says so).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType

COUNTERS = "object_name_uids"


@contextlib.contextmanager
def fresh_layer_names() -> Iterator[None]:
    """While open, Keras names layers as if none had been made before."""
    state = keras_global_state()
    if state is None:
        yield
        return
    before = state.get_global_attribute(COUNTERS)
    state.set_global_attribute(COUNTERS, defaultdict(int))
    try:
        yield
    finally:
        state.set_global_attribute(COUNTERS, before)


def keras_global_state() -> ModuleType | None:
    """Keras' module of counters; None when Keras is not loaded, or no longer has it."""
    if "keras" not in sys.modules:
        return None
    try:
        module = importlib.import_module("keras.src.backend.common.global_state")
    except ImportError:
        return None
    has_both = hasattr(module, "get_global_attribute") and hasattr(module, "set_global_attribute")
    return module if has_both else None

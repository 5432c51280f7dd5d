"""Scalars that belong to one optimizer, in a store that may have several."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.store import VariableStore


def own_counter(owner: Any, name: str, initial: float, dtype: Any = tf.float32) -> Any:
    """The scalar of this name that belongs to the object `owner`, in the open store.

    The first owner gets the name itself, further ones (the optimizer of a second network) get a
    number behind it, in the order in which they ask. So each counts its own steps.
    """
    store = VariableStore.current()
    owned: dict[tuple[VariableStore, str], Any] = owner.__dict__.setdefault("_own_counters", {})
    if (store, name) not in owned:
        free, number = name, 0
        while free in store:
            number += 1
            free = f"{name}_{number}"
        owned[store, name] = store.make(free, lambda: tf.constant(initial, dtype), trainable=False)
    return owned[store, name]

"""Scalar variables, such as a learning rate: what callbacks of the chief set reaches all ranks."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.tower import VariableStore
from towerpack.train.ranks import OneRank


class Scalars:
    """The scalar variables of a model and its optimizer that are not trained themselves."""

    def __init__(self, ranks: OneRank, store: VariableStore):
        self._ranks, self._store = ranks, store
        self._chosen: dict[str, Any] = {}
        self._read: Any = None

    def choose(self) -> None:
        """Finds them: those that all ranks have. A callback of the chief may have made others."""
        own = {
            name: variable
            for name, variable in self._store.saved().items()
            if variable.shape.rank == 0 and not variable.trainable and _is_number(variable)
        }
        message = json.dumps(list(own)).encode()
        everyone = [json.loads(text) for text in self._ranks.gather(message, "names of scalars")]
        names = [name for name in everyone[0] if all(name in other for other in everyone)]
        if names == list(self._chosen):
            return
        self._chosen = {name: own[name] for name in names}

        def read() -> list[Any]:
            return [tf.cast(variable, tf.float64) for variable in self._chosen.values()]

        self._read = tf.function(read, autograph=False)

    def checksum(self) -> int:
        """A checksum of their values, which the ranks compare before each call."""
        return zlib.crc32(np.array(self._read()).tobytes()) if self._chosen else 0

    def copy_from_chief(self) -> None:
        """Gives them the chief's values; all ranks call it."""
        self._ranks.copy_from_chief(self._chosen)


def _is_number(variable: Any) -> bool:
    return variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_bool

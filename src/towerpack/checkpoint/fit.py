"""Whether a saved value fits a variable, and what must be done for it to fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack.checkpoint.source import Entry
from towerpack.core.optional import Lazy

tf: Any = Lazy("towerpack._tensorflow", "tf", extra="tf")  # not needed to list checkpoints


@dataclass(frozen=True)
class Fit:
    """`problem` says why a value does not fit; `change` what loading does to it."""

    problem: str | None = None
    change: str | None = None


def fit(entry: Entry, variable: Any, *, reshape: bool) -> Fit:
    """Compares a saved value with a variable.

    Between floating-point types, and to wider integers, values are cast. Another shape of the same
    size is taken only with `reshape`.
    """
    wanted = entry_of(variable)
    if not _castable(entry.dtype, wanted.dtype):
        return Fit(problem=f"the model has {wanted}, the file {entry}")
    changes = []
    if entry.dtype != wanted.dtype:
        changes.append(f"cast from {entry.dtype} to {wanted.dtype}")
    if entry.shape != wanted.shape:
        same_size = math.prod(entry.shape) == math.prod(wanted.shape)
        if not (reshape and same_size):
            return Fit(problem=f"the model has {wanted}, the file {entry}")
        changes.append(f"reshaped from {list(entry.shape)} to {list(wanted.shape)}")
    return Fit(change=", ".join(changes) or None)


def entry_of(variable: Any) -> Entry:
    return Entry(tuple(variable.shape), _plain(variable.dtype))


def _plain(dtype: Any) -> str:
    return tf.as_dtype(dtype).base_dtype.name


def _castable(source: str, target: str) -> bool:
    if source == target:
        return True
    try:
        old, new = tf.as_dtype(source), tf.as_dtype(target)
    except TypeError:  # a dtype of the file that TensorFlow does not know
        return False
    if old.is_floating and new.is_floating:
        return True
    if old.is_integer and new.is_integer:
        return bool(np.can_cast(old.as_numpy_dtype, new.as_numpy_dtype, "safe"))
    return source in ("object", "string") and target == "string"


def fitted(value: Any, variable: Any) -> Any:
    """The value in the variable's dtype and shape."""
    if not tf.executing_eagerly():  # an assignment would be an operation that no session runs
        raise RuntimeError(
            "expected to load into variables of TensorFlow 2, received those of a tf.Graph; there, "
            "restore a checkpoint with tf.compat.v1.train.Saver(variables).restore(session, prefix)"
        )
    tensor = value if tf.is_tensor(value) else tf.convert_to_tensor(value)
    wanted = tf.as_dtype(variable.dtype).base_dtype
    if tensor.dtype != wanted:
        tensor = tf.cast(tensor, wanted)
    if tensor.shape != variable.shape:
        tensor = tf.reshape(tensor, variable.shape)
    return tensor

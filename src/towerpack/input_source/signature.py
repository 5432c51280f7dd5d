"""Does a datapoint fit the inputs that the tower declares?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf


class SignatureError(TypeError):
    """A datapoint does not fit the declared inputs; the message prints both sides."""


def as_inputs(datapoint: Any, signature: Sequence[Any], flow: str) -> list[np.ndarray]:
    """The datapoint's components in the order of the inputs, checked; dicts go by name."""
    names = [spec.name for spec in signature]
    if isinstance(datapoint, dict):
        if not set(names) <= set(datapoint):
            raise _error(
                f"the inputs {sorted(set(names) - set(datapoint))} are missing", **locals()
            )
        components = [datapoint[name] for name in names]
    else:
        components = list(datapoint)
    if len(components) != len(signature):
        raise _error(
            f"expected {len(signature)} components, received {len(components)}", **locals()
        )
    arrays = [np.asarray(component) for component in components]
    for spec, array in zip(signature, arrays, strict=True):
        if array.dtype == object:
            raise _error(f"input {spec.name!r} is made of Python objects, not numbers", **locals())
        received = tf.as_dtype(array.dtype) if array.dtype.kind not in "US" else tf.string
        if received != spec.dtype:
            raise _error(f"input {spec.name!r} has another dtype", **locals())
        if not spec.shape.is_compatible_with(array.shape):
            raise _error(f"input {spec.name!r} has another shape", **locals())
    return arrays


def _error(
    problem: str, *, signature: Sequence[Any], flow: str, datapoint: Any, **_: Any
) -> SignatureError:
    if isinstance(datapoint, dict):
        received = [f"{name}: {_describe(value)}" for name, value in datapoint.items()]
    else:
        received = [f"[{i}]: {_describe(value)}" for i, value in enumerate(datapoint)]
    declared = [f"{spec.name}: {spec.dtype.name} {spec.shape}" for spec in signature]
    lines = [
        f"{flow} does not fit the model's inputs: {problem}.",
        "  the model expects   " + ", ".join(declared),
        "  the flow gives      " + ", ".join(received),
        "Change inputs() of the model, or convert the data (MapData, astype, BatchData).",
    ]
    return SignatureError("\n".join(lines))


def _describe(value: Any) -> str:
    array = np.asarray(value)
    return f"{array.dtype} {tuple(array.shape)}"

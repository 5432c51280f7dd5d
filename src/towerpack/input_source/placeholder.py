"""Inputs that are given from outside."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.input_source.base import InputSource


class PlaceholderInput(InputSource):
    """A placeholder for each input: for graphs that are fed, as a predictor's is.

    They are for `tf.compat.v1.wrap_function(...).prune(feeds, fetches)` and `tf.Graph`; a step of
    training has nobody who would feed it.
    """

    def get_input_tensors(self) -> list[Any]:
        return [placeholder(spec) for spec in self.signature]


def placeholder(spec: Any) -> Any:
    if tf.executing_eagerly():
        raise RuntimeError(
            f"the input {spec.name!r} is a placeholder, which exists only in a graph; give it a "
            "value, or trace the function"
        )
    return v1.placeholder(spec.dtype, spec.shape, spec.name)

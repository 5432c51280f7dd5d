"""What a predictor is: a function from arrays to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class PredictorBase:
    """Called with one array for each of `input_names`, it gives a list, one for each output.

    With `return_input` it gives `(inputs, outputs)`. Safe to call from several threads.
    """

    input_names: Sequence[str] = ()
    output_names: Sequence[str] = ()
    return_input: bool = False

    def __call__(self, *inputs: Any) -> Any:
        if len(inputs) != len(self.input_names):
            raise ValueError(
                f"expected {len(self.input_names)} inputs {list(self.input_names)}, "
                f"received {len(inputs)}"
            )
        outputs = self._predict(inputs)
        return (list(inputs), outputs) if self.return_input else outputs

    def _predict(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        raise NotImplementedError


def as_arrays(tensors: Sequence[Any]) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in tensors]


def inputs_of(datapoint: Any, names: Sequence[str]) -> list[Any]:
    """The components of a datapoint in the order of the inputs; a dict's go by name.

    >>> inputs_of({"label": 1, "x": 2}, ["x"]), inputs_of((3,), ["x"])
    ([2], [3])
    """
    if not isinstance(datapoint, dict):
        return list(datapoint)
    missing = sorted(set(names) - set(datapoint))
    if missing:
        raise KeyError(f"the datapoint lacks the inputs {missing}; it has {sorted(datapoint)}")
    return [datapoint[name] for name in names]

"""Does a datapoint fit the inputs that the tower declares?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf

# Plain Python numbers have no dtype: they take the declared one, if it is of one of these kinds.
PYTHON_KINDS: dict[type, str] = {bool: "b", int: "iuf", float: "f"}

Form = tuple[tuple[np.dtype, tuple[int, ...]], ...]
"""The dtype and shape of each component of a batch."""


class SignatureError(TypeError):
    """A datapoint does not fit the declared inputs; the message prints both sides."""


class InputCheck:
    """Datapoints as lists of arrays in the order of the inputs, checked; dicts go by name.

    A batch of the same form as the one before costs about a microsecond, and its arrays are passed
    on as they are, without a copy.
    """

    def __init__(self, signature: Sequence[Any], flow: str):
        self._signature, self._flow = signature, flow
        self._names = [spec.name for spec in signature]
        self.form: Form = ()

    def __call__(self, datapoint: Any) -> Sequence[np.ndarray]:
        try:
            components = self._components(datapoint)
            form = tuple([(x.dtype, x.shape) for x in components])
            if form == self.form:
                return components
        except (AttributeError, KeyError, TypeError):
            pass  # no arrays, or not those expected: the full check converts them, or says it
        arrays = as_inputs(datapoint, self._signature, self._flow)
        self.form = tuple([(x.dtype, x.shape) for x in arrays])
        return arrays

    def stack(self, stack: Any) -> Sequence[np.ndarray] | None:
        """The components of stacked datapoints, if they have the form of the one before."""
        try:
            components = self._components(stack)
            same = tuple([(x.dtype, x.shape[1:]) for x in components]) == self.form
        except (AttributeError, KeyError, TypeError):
            same = False
        return components if same else None

    def _components(self, datapoint: Any) -> Sequence[Any]:
        if type(datapoint) is dict:
            return [datapoint[name] for name in self._names]
        return datapoint


def as_inputs(datapoint: Any, signature: Sequence[Any], flow: str) -> list[np.ndarray]:
    """The datapoint's components in the order of the inputs, checked; dicts go by name."""
    names = [spec.name for spec in signature]
    if isinstance(datapoint, dict):
        if not set(names) <= set(datapoint):
            raise _error(
                f"the inputs {sorted(set(names) - set(datapoint))} are missing", **locals()
            )
        components = [datapoint[name] for name in names]
    elif isinstance(datapoint, list | tuple):
        components = list(datapoint)
    else:
        raise SignatureError(
            f"{flow} does not fit the model's inputs: expected lists, tuples or dicts of "
            f"components, received a {type(datapoint).__name__}. Wrap it: "
            "MapData(ds, lambda x: [x])"
        )
    if len(components) != len(signature):
        raise _error(
            f"expected {len(signature)} components, received {len(components)}", **locals()
        )
    arrays = [
        _array(component, spec) for component, spec in zip(components, signature, strict=True)
    ]
    for spec, array in zip(signature, arrays, strict=True):
        if _dtype(array) is None:
            raise _error(f"input {spec.name!r} is made of Python objects, not numbers", **locals())
        if _dtype(array) != spec.dtype:
            raise _error(f"input {spec.name!r} has another dtype", **locals())
        if not spec.shape.is_compatible_with(array.shape):
            raise _error(f"input {spec.name!r} has another shape", **locals())
    return arrays


def _array(component: Any, spec: Any) -> np.ndarray:
    kinds = PYTHON_KINDS.get(type(component))
    if kinds is not None and spec.dtype.is_numpy_compatible:
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        if dtype.kind in kinds:
            return np.asarray(component, dtype)
    return np.asarray(component)


def _dtype(array: np.ndarray) -> Any:
    """What TensorFlow would make of it; None for Python objects other than text."""
    if array.dtype.kind in "US":
        return tf.string
    if array.dtype == object:
        text = all(isinstance(item, str | bytes) for item in array.flat)
        return tf.string if text and array.size else None
    try:
        return tf.as_dtype(array.dtype)
    except TypeError:  # dates, records: no tensor can have them
        return None


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
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return f"{type(value).__name__} that is no array"
    return f"{array.dtype} {tuple(array.shape)}"


def checked_tensors(tensors: Any, signature: Sequence[Any], source: str) -> list[Any]:
    """Tensors, or their specs, in the order of the inputs; each is as precise as the two know."""
    names = [spec.name for spec in signature]
    if isinstance(tensors, dict):
        missing = sorted(set(names) - set(tensors))
        if missing:
            raise _tensor_error(f"the inputs {missing} are missing", tensors, signature, source)
        found = [tensors[name] for name in names]
    else:
        found = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    if len(found) != len(signature):
        problem = f"expected {len(signature)} components, received {len(found)}"
        raise _tensor_error(problem, found, signature, source)
    for tensor, spec in zip(found, signature, strict=True):
        if not hasattr(tensor, "dtype") or tensor.dtype != spec.dtype:
            problem = f"input {spec.name!r} has another dtype"
            raise _tensor_error(problem, tensors, signature, source)
        if not spec.shape.is_compatible_with(tensor.shape):
            problem = f"input {spec.name!r} has another shape"
            raise _tensor_error(problem, tensors, signature, source)
    return [
        tensor if isinstance(tensor, tf.TensorSpec) else tf.ensure_shape(tensor, spec.shape)
        for tensor, spec in zip(found, signature, strict=True)
    ]


def _tensor_error(
    problem: str, tensors: Any, signature: Sequence[Any], source: str
) -> SignatureError:
    named = tensors.items() if isinstance(tensors, dict) else enumerate(tf.nest.flatten(tensors))
    received = [
        f"{name}: {tensor.dtype.name} {tensor.shape}"
        if isinstance(tensor, tf.Tensor | tf.TensorSpec)
        else f"{name}: {type(tensor).__name__}"
        for name, tensor in named
    ]
    declared = [f"{spec.name}: {spec.dtype.name} {spec.shape}" for spec in signature]
    return SignatureError(
        f"{source} does not fit the model's inputs: {problem}.\n"
        f"  the model expects   {', '.join(declared)}\n"
        f"  {source} gives      {', '.join(received)}\n"
        "Change inputs() of the model, or convert the data (tf.cast, map)."
    )

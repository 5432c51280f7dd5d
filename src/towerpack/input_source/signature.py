"""Does a datapoint fit the inputs that the tower declares?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger

# Plain Python numbers have no dtype: they take the declared one, if it is of one of these kinds.
PYTHON_KINDS: dict[type, str] = {bool: "b", int: "iuf", float: "f"}

# What numpy makes of Python's numbers, and of most computations.
DEFAULT_DTYPES = (np.dtype(np.float64), np.dtype(np.int64))

Form = tuple[tuple[np.dtype, tuple[int, ...]], ...]
"""The dtype and shape of each component of a batch."""


class SignatureError(TypeError):
    """A datapoint does not fit the declared inputs; the message prints both sides."""


class InputCheck:
    """Datapoints as lists of arrays in the order of the inputs, checked; dicts go by name.

    A batch of the same form as the one before costs about a microsecond, and its arrays are passed
    on as they are, without a copy. Only numpy's default dtypes are converted, as in `as_inputs`,
    which is logged once for each input.
    """

    def __init__(self, signature: Sequence[Any], flow: str):
        self._signature, self._flow = signature, flow
        self._names = [spec.name for spec in signature]
        self._logged: set[str] = set()
        self._received: Form = ()  # what the last datapoint was like
        self.form: Form = ()  # and what was made of it

    def __call__(self, datapoint: Any) -> Sequence[np.ndarray]:
        received: Form = ()
        try:
            components = self._components(datapoint)
            received = tuple([(x.dtype, x.shape) for x in components])
            if received == self.form:
                return components
        except (AttributeError, KeyError, TypeError):
            pass  # no arrays, or not those expected: the full check converts them, or raises
        arrays = as_inputs(datapoint, self._signature, self._flow)
        self.form = tuple([(x.dtype, x.shape) for x in arrays])
        if received != self._received:
            self._received = received
            self._log_conversions()
        return arrays

    def _log_conversions(self) -> None:
        for name, (old, _), (new, _) in zip(self._names, self._received, self.form, strict=False):
            if old in DEFAULT_DTYPES and old != new and name not in self._logged:
                self._logged.add(name)
                logger.info(
                    "%s gives the input %r as %s; it is converted to %s, which the model expects",
                    self._flow, name, old, new,
                )  # fmt: skip

    def stack(self, stack: Any) -> Sequence[np.ndarray] | None:
        """The components of stacked datapoints, if they have the form of the one before."""
        try:
            components = self._components(stack)
            same = tuple([(x.dtype, x.shape[1:]) for x in components]) == self._received
        except (AttributeError, KeyError, TypeError):
            return None
        if not same or self._received == self.form:
            return components if same else None
        converted = [
            converted_default(x, spec.dtype)
            for x, spec in zip(components, self._signature, strict=True)
        ]
        return None if any(x is None for x in converted) else converted  # type: ignore[return-value]

    def _components(self, datapoint: Any) -> Sequence[Any]:
        if type(datapoint) is dict:
            return [datapoint[name] for name in self._names]
        return datapoint


def as_inputs(datapoint: Any, signature: Sequence[Any], flow: str) -> list[np.ndarray]:
    """The datapoint's components in the order of the inputs, checked; dicts go by name.

    Data in numpy's default dtypes, which are rarely chosen, is converted where nothing but the
    precision of floats is lost: float64 to float32, and int64 to an integer that holds its values.
    """
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
            raise _error(f"input {spec.name!r} {_misfit(array, spec.dtype)}", **locals())
        if not spec.shape.is_compatible_with(array.shape):
            raise _error(f"input {spec.name!r} has another shape", **locals())
    return arrays


def _array(component: Any, spec: Any) -> np.ndarray:
    kinds = PYTHON_KINDS.get(type(component))
    if kinds is not None and spec.dtype.is_numpy_compatible:
        dtype = np.dtype(spec.dtype.as_numpy_dtype)
        if dtype.kind in kinds:
            return np.asarray(component, dtype)
    array = np.asarray(component)
    converted = converted_default(array, spec.dtype)
    return array if converted is None else converted


def converted_default(array: np.ndarray, wanted: Any) -> np.ndarray | None:
    """An array with the wanted dtype, converted if it has a default one; None if that is not safe.

    >>> converted_default(np.array([1, 2]), tf.int32).dtype.name
    'int32'
    >>> converted_default(np.array([1, 300]), tf.uint8) is None
    True
    """
    if wanted == array.dtype:
        return array
    if not _is_default_of(array, wanted):
        return None
    is_integer = array.dtype.kind == "i"
    if is_integer and array.size and (array.min() < wanted.min or array.max() > wanted.max):
        return None
    with np.errstate(over="raise"):
        try:
            return array.astype(wanted.as_numpy_dtype)
        except FloatingPointError:
            return None


def _is_default_of(array: np.ndarray, wanted: Any) -> bool:
    """Whether numpy's default dtype stands for the wanted one, if the values fit."""
    if array.dtype == np.float64:
        return bool(wanted == tf.float32)
    return bool(array.dtype == np.int64 and wanted.is_integer)


def _misfit(array: np.ndarray, wanted: Any) -> str:
    if _is_default_of(array, wanted):
        return f"has values from {array.min()} to {array.max()}, which do not fit {wanted.name}"
    return "has another dtype"


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
    problem: str,
    *,
    signature: Sequence[Any],
    flow: str,
    datapoint: Any,
    spec: Any = None,
    array: Any = None,
    **_: Any,
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
        _cure(datapoint, signature, spec, array),
    ]
    return SignatureError("\n".join(lines))


def _cure(datapoint: Any, signature: Sequence[Any], spec: Any, array: Any) -> str:
    """What to do: the line to write, where only the dtype of one component is another."""
    if array is None or array.dtype.kind not in "biuf" or _dtype(array) == spec.dtype:
        return "Change inputs() of the model, or convert the data (MapData, astype, BatchData)."
    if _is_default_of(array, spec.dtype):
        return f"Declare {_dtype(array).name} in inputs() of the model, or scale the data."
    component: Any = spec.name
    if not isinstance(datapoint, dict):
        component = [other.name for other in signature].index(spec.name)
    return (
        f"Declare {_dtype(array).name} in inputs() of the model, or convert the data:\n"
        f'  ds = MapDataComponent(ds, lambda x: x.astype("{spec.dtype.name}"), {component!r})'
    )


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
            raise _tensor_error(problem, tensors, signature, source, wrong=spec)
        if not spec.shape.is_compatible_with(tensor.shape):
            problem = f"input {spec.name!r} has another shape"
            raise _tensor_error(problem, tensors, signature, source)
    return [
        tensor if isinstance(tensor, tf.TensorSpec) else tf.ensure_shape(tensor, spec.shape)
        for tensor, spec in zip(found, signature, strict=True)
    ]


def _tensor_error(
    problem: str, tensors: Any, signature: Sequence[Any], source: str, wrong: Any = None
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
        f"{_tensor_cure(signature, wrong)}"
    )


def _tensor_cure(signature: Sequence[Any], wrong: Any) -> str:
    if wrong is None:
        return "Change inputs() of the model, or convert the data (tf.cast, map)."
    names = [spec.name for spec in signature]
    cast = [
        f"tf.cast({name}, tf.{wrong.dtype.name})" if name == wrong.name else name for name in names
    ]
    return (
        "Change inputs() of the model, or convert the data:\n"
        f"  dataset = dataset.map(lambda {', '.join(names)}: ({', '.join(cast)}))"
    )

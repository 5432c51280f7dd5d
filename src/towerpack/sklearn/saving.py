"""Estimators as files, without pickle: reading one runs no code that the file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.codec import decode, encode
from towerpack.core.files import atomic_file

FUNCTIONS = ("solver", "tower_func", "trainer")  # parameters that may be functions


def save(estimator: Any, path: str | Path) -> None:
    """Writes the parameters and all that a fit has learned to a file, by `towerpack.core.codec`."""
    state = {name: _without_objects(value) for name, value in estimator.__getstate__().items()}
    functions = [name for name in FUNCTIONS if callable(state[name])]
    state |= dict.fromkeys([*functions, "_predictor"])
    record = encode({"class": type(estimator).__name__, "functions": functions, "state": state})
    with atomic_file(path) as file:
        file.write(record)


def load(kind: type, path: str | Path, functions: dict[str, Any]) -> Any:
    """The estimator in a file; parameters that were functions are given again."""
    content = decode(Path(path).read_bytes())
    if content["class"] != kind.__name__:
        raise ValueError(f"expected a {kind.__name__} in {path}, received a {content['class']}")
    if sorted(functions) != sorted(content["functions"]):
        raise ValueError(
            f"expected the functions {content['functions']} as arguments of load, since a file "
            f"does not hold them; received {list(functions)}"
        )
    estimator = kind()
    estimator.__setstate__({**content["state"], **functions})
    return estimator


def _without_objects(value: Any) -> Any:
    """Names and classes that are Python strings, as numpy stores strings."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        if not all(isinstance(each, str) for each in value.flat):
            raise TypeError(f"expected numbers or strings, which a file can hold; received {value}")
        return value.astype(str)
    return value

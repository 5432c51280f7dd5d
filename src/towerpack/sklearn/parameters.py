"""Checks of the parameters of estimators, which scikit-learn expects at the beginning of fit."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from towerpack.core.similar import nearest_first
from towerpack.sklearn.network import ACTIVATIONS
from towerpack.sklearn.training import SOLVERS

SCHEDULES = ("constant", "adaptive")


def check_parameters(estimator: Any) -> None:
    """Raises an error that names the first parameter with a value that it cannot have."""
    e = estimator
    _choice("activation", e.activation, ACTIVATIONS)
    if not callable(e.solver):
        _choice("solver", e.solver, SOLVERS, ", or a function from the rate to an optimizer")
    _choice("learning_rate", e.learning_rate, SCHEDULES)
    if any(not _whole(size) for size in hidden_sizes(e.hidden_layer_sizes)):
        _refuse("hidden_layer_sizes", "whole numbers above 0", e.hidden_layer_sizes)
    if e.batch_size != "auto" and not _whole(e.batch_size):
        _refuse("batch_size", "'auto' or a whole number above 0", e.batch_size)
    if not _whole(e.max_iter):
        _refuse("max_iter", "a whole number above 0", e.max_iter)
    if not (_whole(e.n_iter_no_change) or e.n_iter_no_change == np.inf):
        _refuse("n_iter_no_change", "a whole number above 0, or infinity", e.n_iter_no_change)
    for name in ("alpha", "tol"):
        value = getattr(e, name)
        if not _number(value) or not 0 <= value < np.inf:
            _refuse(name, "a number of 0 or more", value)
    if not _number(e.learning_rate_init) or not 0 < e.learning_rate_init < np.inf:
        _refuse("learning_rate_init", "a number above 0", e.learning_rate_init)
    if not _number(e.validation_fraction) or not 0 <= e.validation_fraction < 1:
        _refuse("validation_fraction", "a number from 0 to 1", e.validation_fraction)
    for name in ("tower_func", "trainer"):
        value = getattr(e, name)
        if value is not None and not callable(value):
            _refuse(name, "a function, or None", value)


def hidden_sizes(sizes: Any) -> tuple[int, ...]:
    """The sizes of the hidden layers; a single number is one layer."""
    return tuple(sizes) if hasattr(sizes, "__iter__") else (sizes,)


def _number(value: Any) -> bool:
    return isinstance(value, Real)


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) > 0


def _choice(name: str, value: Any, known: Any, other: str = "") -> None:
    if value not in list(known):
        _refuse(name, f"one of {nearest_first(str(value), known)}{other}", value)


def _refuse(name: str, allowed: str, value: Any) -> None:
    raise ValueError(f"expected {name} to be {allowed}; received {value!r}")

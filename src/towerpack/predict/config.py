"""What to predict with, in one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack.checkpoint import SmartInit
from towerpack.models import ModelDescBase
from towerpack.predict.averages import with_averages
from towerpack.tower import TowerFunc


class PredictConfig:
    """A tower, its weights, and the names of what goes in and comes out.

    Give a `model`, or `tower_func` with `input_signature`: it may be another function than the one
    that was trained (another input, another size), as long as its variables have the same names.
    `output_names` are any tensors of the tower; `input_names` those inputs that they need, by
    default all. `session_init` is a loader made by `SmartInit`, or what `SmartInit` takes: a
    checkpoint's path, an npz file, a dict. With `ema=True` the moving averages in it, variables
    named `<name>/ExponentialMovingAverage`, take the place of the weights. With `return_input=True`
    predictors give `(inputs, outputs)`.
    """

    def __init__(
        self,
        *,
        model: ModelDescBase | None = None,
        tower_func: Callable[..., Any] | None = None,
        input_signature: Sequence[Any] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str],
        session_init: Any = None,
        return_input: bool = False,
        ema: bool = False,
    ):
        self.tower_func = as_tower_func(model, tower_func, input_signature)
        known = self.tower_func.input_names
        self.input_names = _names(known if input_names is None else input_names, "input_names")
        unknown = [name for name in self.input_names if name not in known]
        if unknown:
            raise ValueError(f"expected input_names among {known}, received {unknown}")
        self.output_names = _names(output_names, "output_names")
        if not self.output_names:
            raise ValueError("expected at least one of output_names, received none")
        self.has_weights = session_init is not None and session_init != ""
        if ema and not self.has_weights:
            raise ValueError("ema=True needs session_init=, where the averages are")
        self.session_init = SmartInit(with_averages(session_init) if ema else session_init)
        self.return_input = return_input

    @property
    def input_specs(self) -> list[Any]:
        """The `tf.TensorSpec`s of `input_names`."""
        by_name = {spec.name: spec for spec in self.tower_func.signature}
        return [by_name[name] for name in self.input_names]


def as_tower_func(
    model: ModelDescBase | None,
    tower_func: Callable[..., Any] | None,
    input_signature: Sequence[Any] | None,
) -> TowerFunc:
    """The tower function in what was given: a model, or a function with its signature."""
    if (model is None) == (tower_func is None):
        raise ValueError("expected either model= or tower_func=, one of the two")
    if model is not None:
        return model.tower_func()
    if isinstance(tower_func, TowerFunc):
        return tower_func
    if input_signature is None or tower_func is None:
        raise ValueError("tower_func= needs input_signature=")
    return TowerFunc(tower_func, input_signature)


def _names(names: Sequence[str], argument: str) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"expected a list of names as {argument}, received the string {names!r}")
    return list(names)

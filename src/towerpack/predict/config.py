"""What a predictor needs: a tower, its weights, and the names of inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.callbacks.ema import SUFFIX
from towerpack.checkpoint import SmartInit, load_checkpoint_vars
from towerpack.models import ModelDescBase
from towerpack.tower import TowerFunc

AVERAGE = f"/{SUFFIX}"  # the end of the names of moving averages


class PredictConfig:
    """A tower, its weights, and the names of its inputs and outputs.

    Pass a `model`, or `tower_func` with `input_signature`. The function may differ from the one
    that was trained (another input, another size), as long as its variables have the same names.
    `output_names` are any tensors of the tower. `input_names` are the inputs that these outputs
    need, by default all. `session_init` is a loader made by `SmartInit`, or what `SmartInit`
    accepts: a checkpoint's path, an npz file, a dict. With `ema=True`, its moving averages
    (variables named `<name>/ExponentialMovingAverage`) replace the weights. With
    `return_input=True`, predictors return `(inputs, outputs)`.
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
            raise ValueError("expected at least one name in output_names, received an empty list")
        self.has_weights = session_init is not None and session_init != ""
        if ema and not self.has_weights:
            raise ValueError("expected session_init= with ema=True: it holds the averages")
        self.session_init = SmartInit(_with_averages(session_init) if ema else session_init)
        self.return_input = return_input

    def with_weights(self, session_init: Any) -> PredictConfig:
        """A copy with other weights, and with a tower function that refers to no traced graph."""
        return PredictConfig(
            tower_func=self.tower_func.func,
            input_signature=self.tower_func.signature,
            input_names=self.input_names,
            output_names=self.output_names,
            session_init=session_init,
        )

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
    """The tower function of a model, or of a function with its signature."""
    if (model is None) == (tower_func is None):
        raise ValueError("expected exactly one of model= and tower_func=")
    if model is not None:
        return model.tower_func()
    if isinstance(tower_func, TowerFunc):
        return tower_func
    if input_signature is None or tower_func is None:
        raise ValueError("expected input_signature= together with tower_func=")
    return TowerFunc(tower_func, input_signature)


def _names(names: Sequence[str], argument: str) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"expected a list of names as {argument}, received the string {names!r}")
    return list(names)


def _with_averages(session_init: Any) -> dict[str, np.ndarray]:
    """The values in a checkpoint, with averages in place of the variables that have one.

    A checkpoint without any average is an error, because its plain weights are not averages.

    >>> _with_averages({"w": 1, "w/ExponentialMovingAverage": 2, "b": 3})
    {'b': 3, 'w': 2}
    """
    if isinstance(session_init, str | Path):
        values: Mapping[str, Any] = load_checkpoint_vars(session_init)
    elif isinstance(session_init, Mapping):
        values = session_init
    else:
        raise TypeError(
            f"expected a checkpoint's path or a dict of arrays for ema=True, received "
            f"{session_init!r}"
        )
    averages = {
        name.removesuffix(AVERAGE): value
        for name, value in values.items()
        if name.endswith(AVERAGE)
    }
    if not averages:
        raise ValueError(
            f"expected moving averages (variables named '<name>{AVERAGE}'), found none among "
            f"the {len(values)} values; was the model trained with them?"
        )
    plain = {name: value for name, value in values.items() if not name.endswith(AVERAGE)}
    return dict(sorted({**plain, **averages}.items()))

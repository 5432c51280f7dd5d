"""What to predict with, in one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack.checkpoint import SmartInit
from towerpack.models import ModelDescBase
from towerpack.tower import TowerFunc


class PredictConfig:
    """A tower, its weights, and the names of what goes in and comes out.

    Give a `model`, or `tower_func` with `input_signature`. `session_init` is a loader made by
    `SmartInit`, or what `SmartInit` takes: a checkpoint's path, an npz file, a dict.
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
    ):
        if (model is None) == (tower_func is None):
            raise ValueError("expected either model= or tower_func=, one of the two")
        if model is not None:
            self.tower_func = model.tower_func()
        elif isinstance(tower_func, TowerFunc):
            self.tower_func = tower_func
        elif input_signature is None or tower_func is None:
            raise ValueError("tower_func= needs input_signature=")
        else:
            self.tower_func = TowerFunc(tower_func, input_signature)
        self.input_names = list(self.tower_func.input_names if input_names is None else input_names)
        self.output_names = list(output_names)
        self.session_init = SmartInit(session_init)

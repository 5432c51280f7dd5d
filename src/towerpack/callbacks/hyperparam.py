"""What can be changed while training runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack.callbacks.base import TrainerView
from towerpack.core.similar import nearest_first
from towerpack.tower import VariableStore


class HyperParam:
    """Something with a value that callbacks may get and set.

    `readable_name` is its name in logs, monitors and `hyper.txt`.
    """

    readable_name: str

    def setup_graph(self, trainer: TrainerView) -> None:
        """Called once, when the model has been built."""

    def get_value(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define get_value()")

    def set_value(self, value: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define set_value()")

    def __str__(self) -> str:
        return self.readable_name


class GraphVarParam(HyperParam):
    """A variable of the model or its optimizer, by name.

    The name is the one in the store, or its last part if only one variable ends so: `learning_rate`
    finds `learning_rate` as well as the `adam/learning_rate` of a Keras optimizer. Setting it takes
    effect with the next step, without a new trace.

    >>> rate = GraphVarParam("learning_rate")
    """

    def __init__(self, name: str, shape: tuple[int, ...] = ()):
        self.name = name.removesuffix(":0")
        self.shape = tuple(shape)
        self.readable_name = self.name

    def setup_graph(self, trainer: TrainerView) -> None:
        self.var = self._find(trainer.store)
        if tuple(self.var.shape) != self.shape:
            raise ValueError(
                f"expected the variable {self.name!r} to have shape {self.shape}, received "
                f"{tuple(self.var.shape)}; pass its shape to GraphVarParam"
            )

    def _find(self, store: VariableStore) -> Any:
        variables = store.variables
        if self.name in variables:
            return variables[self.name]
        ending = [name for name in variables if name.endswith(f"/{self.name}")]
        if len(ending) == 1:
            return variables[ending[0]]
        if ending:
            raise ValueError(
                f"several variables end in {self.name!r}: {ending}; give the whole name"
            )
        settable = [n for n, v in store.saved().items() if tuple(v.shape) == self.shape]
        hint = f"; variables of shape {self.shape} are {nearest_first(self.name, settable)}"
        if self.name == "learning_rate":
            hint += (
                "; an optimizer of tf.compat.v1.train keeps a plain number to itself: give it a "
                "variable, tf.compat.v1.get_variable('learning_rate', initializer=0.1, "
                "trainable=False)"
            )
        raise KeyError(f"no variable is named {self.name!r}{hint}")

    def get_value(self) -> Any:
        return self.var.numpy().item() if not self.shape else self.var.numpy()

    def set_value(self, value: Any) -> None:
        array = np.asarray(value)
        if self.var.dtype.is_integer and array.dtype.kind not in "iub":
            raise ValueError(
                f"expected an integer for {self.name!r}, which is of type {self.var.dtype.name}, "
                f"received {value!r}"
            )
        self.var.assign(array.astype(self.var.dtype.as_numpy_dtype))


class ObjAttrParam(HyperParam):
    """An attribute of any object: of a callback, a dataflow, a Keras optimizer.

    A Keras optimizer's `learning_rate` is a variable behind the attribute, so that setting it acts
    on the traced step. A plain attribute acts where Python reads it.

    >>> import types
    >>> param = ObjAttrParam(types.SimpleNamespace(rate=0.5), "rate")
    >>> param.set_value(0.25)
    >>> param.get_value()
    0.25
    """

    def __init__(self, obj: Any, attrname: str, readable_name: str | None = None):
        if not hasattr(obj, attrname):
            raise AttributeError(f"expected an object with the attribute {attrname!r}: {obj!r}")
        self.obj, self.attrname = obj, attrname
        self.readable_name = readable_name or attrname

    def get_value(self) -> Any:
        value = getattr(self.obj, self.attrname)
        return np.asarray(value.numpy()).item() if hasattr(value, "numpy") else value

    def set_value(self, value: Any) -> None:
        setattr(self.obj, self.attrname, value)


def as_param(param: str | HyperParam) -> HyperParam:
    """A hyperparameter; a name stands for the variable of that name."""
    if isinstance(param, str):
        return GraphVarParam(param)
    if not isinstance(param, HyperParam):
        raise TypeError(f"expected a HyperParam or the name of a variable, received {param!r}")
    return param

"""The tower function, and the tensors of a tower by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.context import get_current_tower_context
from towerpack.tower.layer_calls import operation_number


def get_op_tensor_name(name: str) -> tuple[str, str]:
    """The name of the operation and that of the tensor.

    >>> get_op_tensor_name("prob"), get_op_tensor_name("split:1")
    (('prob', 'prob:0'), ('split', 'split:1'))
    """
    op, _, number = name.partition(":")
    return op, f"{op}:{number or 0}"


class TowerTensorHandle:
    """The tensors of one call of a tower function, by names without the tower's prefix."""

    def __init__(self, context: Any, signature: Sequence[Any], inputs: Sequence[Any], output: Any):
        self.context, self.is_training = context, context.is_training
        self.signature = list(signature)
        self.inputs, self.output, self.outputs = list(inputs), output, output
        self._inputs_by_name = {spec.name: x for spec, x in zip(signature, inputs, strict=True)}
        # The graph that the tower was traced into; None for one that ran eagerly.
        self.graph = None if tf.executing_eagerly() else v1.get_default_graph()
        self.operations = range(0)  # of the graph: those that the tower function added

    def get_tensor(self, name: str) -> Any:
        """The tensor with that name. The name of an input gives the input itself."""
        op, tensor = get_op_tensor_name(name)
        if op in self._inputs_by_name:
            return self._inputs_by_name[op]
        if self.graph is None:
            raise RuntimeError("tensors have names only in a traced tower and not in eager mode")
        prefix = f"{self.context.name}/" if self.context.name else ""
        try:
            return self.graph.get_tensor_by_name(prefix + tensor)
        except KeyError:
            known = [op.name.removeprefix(prefix) for op in self.graph.get_operations()]
            raise KeyError(self._explain(name, known)) from None

    def get_tensors(self, names: Sequence[str]) -> list[Any]:
        return [self.get_tensor(name) for name in names]

    def __getitem__(self, name: str) -> Any:
        return self.get_tensor(name)

    def get_variable(self, name: str) -> Any:
        """The variable of this tower with that name."""
        return self.context.store[name]

    def get_variables(self, names: Sequence[str]) -> list[Any]:
        return [self.get_variable(name) for name in names]

    def get_collection(self, key: str) -> list[Any]:
        """The items that the tower function added to a collection of its graph."""
        return [] if self.graph is None else self.graph.get_collection(key)

    def _explain(self, name: str, known: list[str]) -> str:
        op, _ = get_op_tensor_name(name)
        near = difflib.get_close_matches(op, [*known, *self._inputs_by_name], n=4, cutoff=0.5)
        hint = f"the nearest are {near}" if near else "no name is similar"
        return (
            f"the tower has no tensor named {name!r}; {hint}. Name it in the tower function: "
            f"tf.identity(x, name={name!r})"
        )


class TowerTensorHandles:
    """The towers of a model, by number or name, or only those for training or inference."""

    def __init__(self, handles: Sequence[TowerTensorHandle]):
        self._handles = list(handles)

    def __getitem__(self, which: int | str) -> TowerTensorHandle:
        if isinstance(which, int):
            return self._handles[which]
        for handle in self._handles:
            if handle.context.name == which:
                return handle
        names = [handle.context.name for handle in self._handles]
        raise KeyError(f"no tower is named {which!r}; the towers are {names}")

    def __len__(self) -> int:
        return len(self._handles)

    def training(self) -> TowerTensorHandles:
        return TowerTensorHandles([h for h in self._handles if h.is_training])

    def inference(self) -> TowerTensorHandles:
        return TowerTensorHandles([h for h in self._handles if not h.is_training])


class TowerFunc:
    """A function that builds one replica of a model, with the signature of its inputs.

    It is called under a `TowerContext`, once for each trace: training, inference, export. So it may
    run many times. Trainable variables must be those that are trained by gradients, and names may
    only depend on variable scopes.
    """

    def __init__(self, func: Callable[..., Any], signature: Sequence[Any]):
        self.func, self.signature = func, checked_signature(signature)
        self._handles: dict[tuple[str, bool], TowerTensorHandle] = {}

    @property
    def input_names(self) -> list[str]:
        return [spec.name for spec in self.signature]

    def __call__(self, *inputs: Any) -> TowerTensorHandle:
        context = get_current_tower_context()
        if context is None:
            raise RuntimeError("a tower function must be called inside a TowerContext")
        if len(inputs) != len(self.signature):
            raise ValueError(
                f"the tower takes {len(self.signature)} inputs {self.input_names}, received "
                f"{len(inputs)}"
            )
        first = operation_number()
        try:
            output = self.func(*inputs)
        except tf.errors.OperatorNotAllowedInGraphError as error:
            error.add_note(
                "A tower function runs when the step is traced, where tensors have no values yet. "
                "Python's if, while and for cannot depend on them: use tf.where(condition, a, b), "
                "tf.cond or tf.while_loop."
            )
            raise
        handle = TowerTensorHandle(context, self.signature, inputs, output)
        handle.operations = range(first, operation_number())
        self._handles[context.name, context.is_training] = handle  # a new trace replaces the old
        return handle

    @property
    def towers(self) -> TowerTensorHandles:
        """The latest trace of each tower built so far."""
        return TowerTensorHandles(list(self._handles.values()))


def checked_signature(signature: Sequence[Any]) -> list[Any]:
    """The signature as a list. Raises an error that says what is wrong with it."""
    specs = list(signature)
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec):
            raise TypeError(f"expected tf.TensorSpec as inputs, received {spec!r}")
        if not spec.name or any(mark in spec.name for mark in ":/ "):
            raise ValueError(
                f"expected a name without ':', '/' and spaces for every input, received "
                f"{spec.name!r} in {spec}"
            )
    names = [spec.name for spec in specs]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"expected each input to have its own name, received {doubled} twice")
    return specs

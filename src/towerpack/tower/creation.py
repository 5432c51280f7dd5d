"""How variables are created while a store is open: `get_variable` and `tf.Variable` by name.

While a `StoreScope` is open, `tf.compat.v1.get_variable`, which the layers also use, looks a
variable up by its full scoped name and creates it only if it does not exist. `tf.Variable` does the
same under the open variable scope. Variables are created outside of any trace, so that further
traces, other towers, inference and checkpoints share them.
"""

from __future__ import annotations

import difflib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from towerpack._tensorflow import tf, v1

if TYPE_CHECKING:
    from towerpack.tower.store import VariableStore

# TensorFlow lifts a variable that is created in a `tf.function` out of it, and traces the function
# once more without it. Variables of a store are created outside already.
NOT_LIFTED = {"experimental_enable_variable_lifting": False}


class _Thread(threading.local):
    def __init__(self) -> None:
        self.scopes: list[StoreScope] = []  # those that are open, the innermost last


thread = _Thread()


def current_scope() -> StoreScope:
    """The innermost scope that is open in this thread."""
    if not thread.scopes:
        raise RuntimeError("no model is being built here: there is no open variable store")
    return thread.scopes[-1]


class StoreScope:
    """One opening of a store. It records what was requested, to tell sharing from accident."""

    def __init__(self, store: VariableStore, prefix: str):
        self.store = store
        self.prefix = prefix  # of the tower's name scope, which is not part of variable names
        self.losses: dict[str, Any] = {}  # of regularizers, by variable
        self._requested: set[str] = set()
        self._counts: Counter[str] = Counter()  # of plain variables, by name
        self._functions: set[Any] = set()

    def first_call(self, key: Any) -> bool:
        """Whether `key`, a function under a scope, is called for the first time in this tower."""
        new = key not in self._functions
        self._functions.add(key)
        return new

    def check_counts(self) -> None:
        """Refuses names that several plain variables share, unless all are requested again.

        Such variables are numbered in their order. A layer made outside of the tower function
        creates its variables only in the first call. A layer of the same name made inside would
        then find the variables of the other layer.
        """
        if self.store.plain_counts is None:
            self.store.plain_counts = dict(self._counts)
            return
        for name, first in self.store.plain_counts.items():
            if first > 1 and self._counts[name] not in (0, first):
                raise ValueError(
                    f"the first call created {first} variables named {name!r}, but this call "
                    f"{self._counts[name]}; give each its own name, including the layers made "
                    "outside of the tower function"
                )

    def getter(self, getter: Callable[..., Any], name: str, **options: Any) -> Any:
        """Called by `get_variable`: uses this store, or TensorFlow's own while it is set aside."""
        return getter(name, **options) if self.store.creating else self._get(name, **options)

    def _get(
        self,
        name: str,
        shape: Any = None,
        dtype: Any = tf.float32,
        initializer: Any = None,
        regularizer: Callable[[Any], Any] | None = None,
        reuse: Any = None,
        trainable: bool | None = None,
        collections: Any = None,
        constraint: Any = None,
        synchronization: Any = tf.VariableSynchronization.AUTO,
        aggregation: Any = tf.VariableAggregation.NONE,
        **_: Any,
    ) -> Any:
        store = self.store
        # In eager mode TensorFlow does not pass `reuse` on, so sharing is allowed there.
        if name in self._requested and not reuse and not tf.executing_eagerly():
            raise ValueError(
                f"the variable {name!r} is made twice in one tower; give the two layers different "
                "names, or share it on purpose with variable_scope(..., reuse=tf.AUTO_REUSE)"
            )
        if reuse is True and name not in store:
            near = difflib.get_close_matches(name, store.variables, n=3)
            raise ValueError(
                f"reuse=True, but there is no variable {name!r}; the nearest are {near}"
            )
        self._requested.add(name)
        local = v1.GraphKeys.LOCAL_VARIABLES in (collections or ())
        if trainable is None:
            trainable = synchronization != tf.VariableSynchronization.ON_READ
        if name not in store:
            variable = store.make(
                name,
                _initial_value(name, shape, tf.as_dtype(dtype or tf.float32), initializer),
                trainable=trainable and not local,
                local=local,
                constraint=constraint,
                synchronization=synchronization,
                aggregation=aggregation,
            )
        else:
            variable = store[name]
            if shape is not None and not variable.shape.is_compatible_with(shape):
                raise ValueError(
                    f"the variable {name!r} has shape {variable.shape}, but shape "
                    f"{tf.TensorShape(shape)} was requested; do two layers have the same name, or "
                    "does the input have another size?"
                )
        # Each trace computes the losses anew, as tensors of its graph.
        if regularizer is not None and name not in self.losses:  # a shared variable counts once
            self.losses[name] = loss = regularizer(variable)
            v1.add_to_collection(v1.GraphKeys.REGULARIZATION_LOSSES, loss)
        return variable

    def creator(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Called for `tf.Variable`, Keras layers and modules: names the variable by its scopes."""
        store = self.store
        if store.creating:  # `make` has chosen the name
            return next_creator(**kwargs)
        base = self._scoped_name(kwargs.get("name") or "Variable")
        self._counts[base] += 1
        name = base if self._counts[base] == 1 else f"{base}_{self._counts[base] - 1}"
        if name in store:
            return store[name]
        if kwargs.get("trainable") is not False:
            store.check_not_late(name)
        initial = kwargs.get("initial_value")
        if tf.is_tensor(initial) and not hasattr(initial, "numpy"):
            kwargs["initial_value"] = _lifted(initial)
        # The name is complete: without name_scope(None) an open name scope would be added again.
        with store.aside(), tf.init_scope(), v1.name_scope(None):
            variable = next_creator(**{**kwargs, **NOT_LIFTED, "name": name})
        store.variables[name] = variable
        return variable

    def _scoped_name(self, name: str) -> str:
        """The variable scope, the name scopes inside it (of a Keras layer), and the name."""
        scope = v1.get_variable_scope()
        inside = f"{tf.get_current_name_scope()}/".removeprefix(self.prefix)
        inside = inside.removeprefix((scope.original_name_scope or "").removeprefix(self.prefix))
        return "/".join(filter(None, [scope.name, inside.strip("/"), name]))


def _initial_value(name: str, shape: Any, dtype: Any, initializer: Any) -> Callable[[], Any]:
    if initializer is None:
        if dtype.is_floating or dtype.is_complex:
            initializer = v1.glorot_uniform_initializer()
        else:
            initializer = v1.zeros_initializer()
    if isinstance(initializer, type):
        initializer = initializer()
    if not callable(initializer):
        if tf.is_tensor(initializer):
            return lambda: _lifted(initializer)
        return lambda: tf.constant(initializer)  # has the dtype of the value, as in TensorFlow
    if shape is None:
        raise ValueError(f"the variable {name!r} needs a shape, or a constant as its initializer")
    static_shape = tf.TensorShape(shape)
    if not static_shape.is_fully_defined():
        raise ValueError(
            f"the variable {name!r} needs a shape without unknown sizes, received {static_shape}; "
            "declare the input's size in its TensorSpec"
        )
    return lambda: initializer(static_shape.as_list(), dtype=dtype)


def _lifted(tensor: Any) -> Any:
    """The value of a symbolic tensor that depends on no input of the trace, as an eager tensor.

    `tf.Variable(tf.zeros([3]))` in a tower function has a tensor of the graph as its initial value,
    but the variable is created outside of the graph.
    """
    static = tf.get_static_value(tensor)
    if static is not None:
        with tf.init_scope():
            return tf.constant(static, tensor.dtype)
    needed, graph_def = operations_before([tensor]), tensor.graph.as_graph_def()
    nodes = [node for node in graph_def.node if node.name in needed]
    inputs = [node.name for node in nodes if node.op in ("Placeholder", "VarHandleOp")]
    if inputs:
        raise ValueError(
            f"the initial value {tensor.name!r} of a variable depends on {inputs[0]!r}, an input "
            "of the trace; expected a constant, or a function that computes it"
        )
    subgraph = v1.GraphDef(node=nodes, library=graph_def.library)

    def compute() -> Any:
        return tf.graph_util.import_graph_def(subgraph, return_elements=[tensor.name], name="")

    with tf.init_scope():
        return v1.wrap_function(compute, [])()[0]


def operations_before(tensors: Sequence[Any], stop: Collection[str] = ()) -> set[str]:
    """The names of all operations that the tensors depend on, up to those of `stop`."""
    seen: set[str] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            if operation.name not in stop:
                waiting.extend(tensor.op for tensor in operation.inputs)
                waiting.extend(operation.control_inputs)
    return seen

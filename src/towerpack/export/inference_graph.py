"""The graph that is exported: the part of a tower between inputs and outputs, with its variables.

Variables that only training needs, such as those of optimizers, are not part of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.predict import PredictConfig
from towerpack.predict.predictor import load_weights, variables_read
from towerpack.tower import TowerFunc, TracedTower, VariableStore, get_op_tensor_name

GRADIENT = "_gradient_op_type"  # the attribute of nodes with a custom gradient

Names = Mapping[str, str] | Sequence[str]


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of an exported function.

    `inputs` and `outputs` map keys, which the users of the export see, to names in the tower; a
    list of names stands for itself. With `preprocess` the export takes `preprocess_inputs` (a list
    of `tf.TensorSpec`) instead: the function is called with these tensors, in the graph, and
    returns the tower's `inputs` in their order.

    >>> Signature({"pixels": "image"}, ["prob"]).outputs_by_key
    {'prob': 'prob'}
    """

    inputs: Names
    outputs: Names
    preprocess: Callable[..., Any] | None = None
    preprocess_inputs: Sequence[Any] = ()

    def __post_init__(self) -> None:
        for names in (self.inputs, self.outputs):
            if isinstance(names, str):
                raise TypeError(f"expected a list or a dict of names, received {names!r}")
        if not self.outputs:
            raise ValueError("expected at least one output, received none")
        if (self.preprocess is None) != (not self.preprocess_inputs):
            raise ValueError("expected preprocess and preprocess_inputs together, or neither")

    @property
    def inputs_by_key(self) -> dict[str, str]:
        """Key to name of the input of `tower_func(...)`."""
        if self.preprocess is not None:
            return {spec.name: spec.name for spec in self.preprocess_inputs}
        return _by_key(self.inputs)

    @property
    def outputs_by_key(self) -> dict[str, str]:
        return _by_key(self.outputs)

    def tower_func(self, tower: TowerFunc) -> TowerFunc:
        """The tower, with the preprocessing before it if there is any."""
        if self.preprocess is None:
            return tower
        preprocess, made = self.preprocess, list(_by_key(self.inputs).values())
        others = [spec for spec in tower.signature if spec.name not in made]

        def preprocessed(*inputs: Any) -> Any:
            tensors = preprocess(*inputs[: len(self.preprocess_inputs)])
            tensors = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
            if len(tensors) != len(made):
                raise ValueError(
                    f"expected preprocess to return {len(made)} tensors for the inputs {made}, "
                    f"received {len(tensors)}"
                )
            given = dict(zip(made, tensors, strict=True))
            given.update(
                zip((s.name for s in others), inputs[len(self.preprocess_inputs) :], strict=True)
            )
            return tower.func(*(given[spec.name] for spec in tower.signature))

        return TowerFunc(preprocessed, [*self.preprocess_inputs, *others])


def _by_key(names: Names) -> dict[str, str]:
    return dict(names) if isinstance(names, Mapping) else {name: name for name in names}


class InferenceGraph:
    """One function from `specs` to `output_keys`, traced and pruned, over a store's variables.

    `concrete` is that function for TensorFlow: its tensors have the names of the tower's, its
    inputs those of the keys, and it captures no variable that the outputs do not depend on. Called
    with arrays by key, the object returns the tower's own outputs, with which every export is
    compared.
    """

    def __init__(self, config: PredictConfig, signature: Signature, store: VariableStore):
        tower = TracedTower(signature.tower_func(config.tower_func), store)
        names = signature.inputs_by_key
        self.output_keys = list(signature.outputs_by_key)
        self.output_names = [
            get_op_tensor_name(name)[1] for name in signature.outputs_by_key.values()
        ]
        self.pruned = tower.prune(list(names.values()), list(signature.outputs_by_key.values()))
        by_name = {spec.name: spec for spec in tower.tower_func.signature}
        self.specs = [
            tf.TensorSpec(by_name[name].shape, by_name[name].dtype, key)
            for key, name in names.items()
        ]
        self.variables: dict[str, Any] = variables_read(self.pruned, store)
        self._build = self._rebuilt(list(names.values()))
        self.concrete = self.concrete_for(self.specs)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = [tf.convert_to_tensor(inputs[spec.name], spec.dtype) for spec in self.specs]
        outputs = self.pruned(*tensors)
        return {key: output.numpy() for key, output in zip(self.output_keys, outputs, strict=True)}

    def concrete_for(self, specs: Sequence[Any]) -> Any:
        """`concrete` for inputs of other, narrower shapes."""
        function = tf.function(self._build, input_signature=list(specs), autograph=False)
        return function.get_concrete_function()

    def _rebuilt(self, input_names: list[str]) -> Callable[..., dict[str, Any]]:
        """A function that builds the pruned graph again, without unused captures."""
        graph = self.pruned.graph
        graph_def = reachable(graph.as_graph_def(), self.output_names)
        needed = {node.name for node in graph_def.node}
        captures = {
            internal.name: external
            for external, internal in graph.captures
            if internal.op.name in needed
        }
        feeds = {tensor.name for tensor in self.pruned.inputs}
        _forget_gradients(graph_def)
        nodes = [node for node in graph_def.node if f"{node.name}:0" not in feeds]
        del graph_def.node[:]
        graph_def.node.extend(nodes)
        taken = {spec.name for spec in self.specs} & {node.name for node in nodes}
        if taken:
            raise ValueError(
                "expected keys of inputs that are not names of operations of the tower, received "
                f"{sorted(taken)}; choose others"
            )

        def rebuilt(*inputs: Any) -> dict[str, Any]:
            given = dict(zip((f"{name}:0" for name in input_names), inputs, strict=True))
            input_map = {name: tensor for name, tensor in given.items() if name[:-2] in needed}
            for name, external in captures.items():
                input_map[name] = v1.get_default_graph().capture(external)
            for variable in self.variables.values():
                v1.get_default_graph().watch_variable(variable)
            wanted = [name for name in self.output_names if name not in given]
            found = tf.graph_util.import_graph_def(
                graph_def, input_map=input_map, return_elements=wanted, name=""
            )
            given.update(zip(wanted, found, strict=True))
            return {
                key: given[name]
                for key, name in zip(self.output_keys, self.output_names, strict=True)
            }

        return rebuilt


def build(config: PredictConfig, signatures: Mapping[str, Signature]) -> dict[str, InferenceGraph]:
    """A graph for each signature, over one set of variables, with the config's weights loaded."""
    store = VariableStore()
    graphs = {name: InferenceGraph(config, each, store) for name, each in signatures.items()}
    load_weights(config, store, *(graph.pruned for graph in graphs.values()))
    return graphs


def reachable(graph_def: Any, output_names: Sequence[str], replaced: Collection[str] = ()) -> Any:
    """The part of a graph that the outputs depend on, without what computes `replaced` tensors."""
    by_name = {node.name: node for node in graph_def.node}
    needed: set[str] = set()
    waiting = [get_op_tensor_name(name)[0] for name in output_names]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            edges = by_name[name].input
            waiting.extend(node_of(x) for x in edges if get_op_tensor_name(x)[1] not in replaced)
    part = v1.GraphDef(library=graph_def.library, versions=graph_def.versions)
    part.node.extend(node for node in graph_def.node if node.name in needed)
    return part


def _forget_gradients(graph_def: Any) -> None:
    """Removes references to custom gradients: they cannot be saved, and no export needs them."""
    functions = (node for function in graph_def.library.function for node in function.node_def)
    for node in itertools.chain(graph_def.node, functions):
        node.attr.pop(GRADIENT, None)


def node_of(edge: str) -> str:
    """The node that an input of a node refers to.

    >>> node_of("split:1"), node_of("^ready")
    ('split', 'ready')
    """
    return edge.removeprefix("^").partition(":")[0]

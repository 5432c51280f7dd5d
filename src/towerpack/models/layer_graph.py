"""What the trace of a tower shows about its layers: their operations, sizes and connections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.flops import Flops, UnknownFlops, declare_variables
from towerpack.tower.layer_calls import LayerCall
from towerpack.tower.tower_func import TowerTensorHandle

_OTHER_TOWER = re.compile(r"tower\d+/")  # where several are traced into one graph
_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")  # take no values


@dataclass(eq=False)
class Part:
    """A layer, or the rest of a model; `variables` as in a `LayerCall`."""

    name: str
    kind: str
    output: str = ""
    variables: Sequence[Any] | None = ()
    flops: int | None = None
    memory: int | None = None
    uncounted: Counter[str] = field(default_factory=Counter)
    is_rest: bool = False


@dataclass(frozen=True)
class Node:
    """A box of the picture; `inputs` are the numbers of the boxes before it."""

    name: str
    kind: str
    output: str
    inputs: tuple[int, ...]


class Traced:
    """The trace of a tower, analysed.

    Sizes are those of one sample, unless the inputs have a fixed batch size, `batch`. The graph is
    not traced again for that: TensorFlow infers the shapes of a copy. `note` says why it could not.
    """

    def __init__(self, handle: TowerTensorHandle):
        self.handle, self.note = handle, ""
        calls = handle.context.layer_calls.calls
        self.parts = [_part(call, calls) for call in calls]
        self.rest = Part("outside of layers", "", is_rest=True)
        self.batch: int | None = None
        self.graph: Any = handle.graph
        self._operations: list[Any] = []
        self._owners: list[int | None] = []
        if self.graph is None:
            self.note = "FLOPs and memory are unknown: the tower ran eagerly, without a graph"
            return
        everything = self.graph.get_operations()
        self._operations = [everything[number] for number in handle.operations]
        self._own(calls)
        self._measure(calls)

    def _own(self, calls: Sequence[LayerCall]) -> None:
        """Finds the innermost call that each operation belongs to."""
        first = self.handle.operations.start
        self._owners = [None] * len(self._operations)
        for number, call in enumerate(calls):  # inner calls come after outer ones
            if not call.apart:
                own = slice(call.first - first, call.last - first)
                self._owners[own] = [number] * (call.last - call.first)

    def _measure(self, calls: Sequence[LayerCall]) -> None:
        graph = self._with_sizes()
        if graph is None:
            return
        flops = Flops(graph)
        apart = [part for part, call in zip(self.parts, calls, strict=True) if call.apart]
        for part in [*self.parts, self.rest]:
            part.flops = None if part in apart else 0
        for operation, owner in zip(self._operations, self._owners, strict=True):
            if not self.handle.context.name and _OTHER_TOWER.match(operation.name):
                continue
            part = self.rest if owner is None else self.parts[owner]
            try:
                found = flops.of(graph.get_operation_by_name(operation.name))
                part.flops = (part.flops or 0) + found
            except UnknownFlops as unknown:
                part.uncounted[str(unknown) or f"{operation.type} of unknown size"] += 1
        for part, call in zip(self.parts, calls, strict=True):
            tensors = [] if call.apart else [graph.get_tensor_by_name(n) for n in call.outputs]
            if tensors and not call.has_parts:
                texts = [self._shape(x) for x in tensors]
                part.output = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
                if all(x.shape.is_fully_defined() for x in tensors):
                    part.memory = sum(x.shape.num_elements() * x.dtype.size for x in tensors)

    def _shape(self, tensor: Any) -> str:
        """The shape in the model: None where it depends on the size of the batch."""
        shape = tensor.shape.as_list() if tensor.shape.rank is not None else ["?"]
        traced = self.graph.get_tensor_by_name(tensor.name).shape
        if self.batch is None and shape and (not traced.rank or traced[0] != shape[0]):
            shape[0] = None
        return str(shape)

    def _with_sizes(self) -> Any:
        """A graph with the operations under the same names, for one sample."""
        open_ = [s.shape.rank and s.shape[0] is None for s in self.handle.signature]
        if not any(open_):
            shapes = [s.shape for s in self.handle.signature if s.shape.rank]
            self.batch = int(shapes[0][0]) if shapes else 1
            return self.graph
        graph = tf.Graph()
        with graph.as_default():
            inputs = {
                x.name: v1.placeholder(
                    x.dtype, [1, *spec.shape[1:]] if is_open else spec.shape, "input_of_one_sample"
                )
                for x, spec, is_open in zip(
                    self.handle.inputs, self.handle.signature, open_, strict=True
                )
            }
            try:
                tf.graph_util.import_graph_def(self._graph_def(), input_map=inputs, name="")
            except ValueError as error:
                self.note = f"FLOPs and memory are unknown: one sample does not fit, {error}"
                return None
        return graph

    def _graph_def(self) -> Any:
        """The operations so far, with variables whose shapes TensorFlow can infer."""
        operations = self.graph.get_operations()[: self.handle.operations.stop]
        kept = {operation.name for operation in operations}
        graph_def = self.graph.as_graph_def()
        nodes = [node for node in graph_def.node if node.name in kept]
        for node in nodes:
            node.attr.pop("_output_shapes", None)
            wanted = [name for name in node.input if name[0] != "^" or name[1:] in kept]
            if len(wanted) < len(node.input):
                node.ClearField("input")
                node.input.extend(wanted)
        declare_variables(nodes, _variables(self.graph, self._operations))
        return v1.GraphDef(node=nodes, library=graph_def.library, versions=graph_def.versions)

    def picture(self) -> list[Node]:
        """Inputs, layers, and the operations that join several of them, from first to last."""
        nodes: list[Node] = []
        sources: dict[str, frozenset[int]] = {}  # of operations: the boxes their values come from
        boxes: dict[int, int] = {}  # the box of a call
        if self.graph is None:
            return []
        for spec, x in zip(self.handle.signature, self.handle.inputs, strict=True):
            sources[x.op.name] = frozenset([len(nodes)])
            nodes.append(Node(spec.name, "input", str(spec.shape.as_list()), ()))
        for operation, owner in zip(self._operations, self._owners, strict=True):
            name = operation.name
            if name in sources:
                continue
            found = [sources.get(x.op.name, frozenset()) for x in operation.inputs]
            come = frozenset().union(*found)
            if owner is not None and not (part := self.parts[owner]).is_rest:
                if owner not in boxes:
                    boxes[owner] = len(nodes)
                    nodes.append(Node(part.name, part.kind, part.output, ()))
                box = boxes[owner]
                before = nodes[box]
                inputs = tuple(dict.fromkeys([*before.inputs, *sorted(come - {box})]))
                nodes[box] = Node(before.name, before.kind, before.output, inputs)
                sources[name] = frozenset([box])
            elif operation.type in _OF_SHAPES:
                sources[name] = frozenset()
            elif len(come) > 1 and operation.outputs and operation.outputs[0].dtype.is_floating:
                sources[name] = frozenset([len(nodes)])
                nodes.append(Node("", operation.type, "", tuple(sorted(come))))
            else:
                sources[name] = come
        outputs = [x for x in tf.nest.flatten(self.handle.output) if tf.is_tensor(x)]
        shown = {box for x in outputs for box in sources.get(x.op.name, ())} | {*boxes.values()}
        return _connected(nodes, shown)


def _connected(nodes: Sequence[Node], shown: set[int]) -> list[Node]:
    """The boxes that lead to one of `shown`, numbered again."""
    for number in range(len(nodes) - 1, -1, -1):
        if number in shown:
            shown |= {*nodes[number].inputs}
    numbers = {old: new for new, old in enumerate(sorted(shown))}
    return [
        Node(n.name, n.kind, n.output, tuple(numbers[i] for i in n.inputs))
        for n in (nodes[old] for old in numbers)
    ]


def _part(call: LayerCall, calls: Sequence[LayerCall]) -> Part:
    name, parent = call.name, call.parent
    while parent is not None:
        name, parent = f"{calls[parent].name}/{name}", calls[parent].parent
    kind = f"{call.kind}, rest" if call.has_parts else call.kind
    output = "" if call.has_parts else call.output
    return Part(name, kind, output, call.variables, is_rest=call.has_parts)


def _variables(graph: Any, operations: Sequence[Any]) -> dict[str, tuple[Any, Any]]:
    """The types and shapes of captured variables, by the name of the placeholder in the graph."""
    by_handle = {id(variable.handle): variable for variable in graph.variables}
    found = {}
    for outside, inside in graph.captures:
        if id(outside) in by_handle:
            variable = by_handle[id(outside)]
            found[inside.op.name] = variable.dtype, variable.shape
    for operation in operations:  # of a loop's body, which captures what its graph captured
        handle = operation.inputs[0].op if operation.type == "ReadVariableOp" else None
        if handle is not None and handle.type == "Placeholder":
            result = operation.outputs[0]
            found.setdefault(handle.name, (result.dtype, result.shape))
    return found

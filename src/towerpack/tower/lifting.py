"""Values that a trace computes from nothing but constants, taken out of it."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1


def lift(tensor: Any) -> Any:
    """The value of a symbolic tensor as an eager one, where it depends on no input of the trace.

    `tf.Variable(tf.zeros([3]))` inside a tower function gives a tensor of the graph as initial
    value, while the variable is made outside of the graph.
    """
    static = tf.get_static_value(tensor)
    if static is not None:
        with tf.init_scope():
            return tf.constant(static, tensor.dtype)
    subgraph = v1.GraphDef()
    wanted, nodes = [tensor.op], set()
    while wanted:
        op = wanted.pop()
        if op.name in nodes:
            continue
        if op.type in ("Placeholder", "VarHandleOp"):
            raise ValueError(
                f"the initial value {tensor.name!r} of a variable depends on {op.name!r}, an input "
                "of the trace; expected a constant, or a function that computes it"
            )
        nodes.add(op.name)
        subgraph.node.append(op.node_def)
        wanted += [*(x.op for x in op.inputs), *op.control_inputs]
    subgraph.library.CopyFrom(tensor.graph.as_graph_def().library)

    def compute() -> Any:
        return tf.graph_util.import_graph_def(subgraph, return_elements=[tensor.name], name="")

    with tf.init_scope():
        return v1.wrap_function(compute, [])()[0]

"""Floating-point operations, counted from the shapes of a graph's operations.

A multiplication and an addition count two. A function of single elements (an activation, say)
counts one for each. Moving numbers, random numbers, and integers count none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Shapes inside functions are not public; a test reports if it disappears.
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from towerpack._tensorflow import tf, v1

# fmt: off
_FREE = {
    "Identity", "IdentityN", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape",
    "Reshape", "Squeeze", "ExpandDims", "Transpose", "ConjugateTranspose", "Pad", "PadV2",
    "MirrorPad", "Slice", "StridedSlice", "Split", "SplitV", "Concat", "ConcatV2", "Pack", "Unpack",
    "Tile", "Fill", "BroadcastTo", "ZerosLike", "OnesLike", "Cast", "Bitcast", "Const",
    "Placeholder", "PlaceholderWithDefault", "ReadVariableOp", "VariableV2", "Gather", "GatherV2",
    "GatherNd", "ResourceGather", "ResourceGatherNd", "OneHot", "Reverse", "ReverseV2",
    "ReverseSequence", "SpaceToDepth", "DepthToSpace", "SpaceToBatchND", "BatchToSpaceND", "Select",
    "SelectV2", "Where", "ScatterNd", "TensorScatterUpdate", "DynamicStitch", "DynamicPartition",
    "InvertPermutation", "MatrixBandPart", "MatrixDiagV3", "DiagPart", "Diag", "Shape", "Size",
    "Rank", "Range", "LinSpace", "BroadcastArgs", "RandomUniform", "RandomStandardNormal",
    "TruncatedNormal", "StatelessRandomUniformV2", "StatelessRandomNormalV2",
    "StatelessTruncatedNormalV2", "StatelessRandomUniform", "StatelessRandomNormal",
    "IteratorGetNext", "QueueDequeueV2", "Empty", "NoOp", "Assert", "ResizeNearestNeighbor",
    "ExtractImagePatches", "TensorListStack", "TensorListGetItem", "TensorListConcatV2",
}
_PER_OUTPUT = {
    "Add", "AddV2", "Sub", "Mul", "MulNoNan", "Div", "DivNoNan", "RealDiv", "FloorDiv", "FloorMod",
    "Xdivy", "Xlogy", "Maximum", "Minimum", "Pow", "SquaredDifference", "BiasAdd", "BiasAddV1",
    "Neg", "Abs", "Sign", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Inv", "Exp", "Expm1", "Log",
    "Log1p", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh", "Atan", "Atan2", "Sigmoid", "Softplus",
    "Softsign", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Erf", "Erfc", "Erfinv", "Floor",
    "Ceil", "Round", "Rint", "ClipByValue", "Lgamma", "Digamma", "Real", "Imag", "Conj", "Angle",
    "ComplexAbs",
}
_PER_INPUT = {
    "Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm", "L2Loss", "Cumsum", "Cumprod",
    "UnsortedSegmentSum", "SegmentSum", "AddN",
}
# fmt: on
_PASSES_OF_SOFTMAX = 5  # maximum, difference, exponential, sum, quotient
_PASSES_OF_NORM = {True: 6, False: 2}  # with the statistics of the batch, or given ones


class UnknownFlops(ValueError):
    """Nothing here counts this type of operation, which it names, or a shape is unknown."""


class Flops:
    """Counts the operations of one graph, and those of the functions that it calls."""

    def __init__(self, graph: Any):
        self._graph = graph
        self._functions: dict[str, Any] | None = None

    def of(self, operation: Any) -> int:
        """The number for one `tf.Operation`; raises UnknownFlops if it cannot be counted."""
        kind = operation.type
        if kind in _FREE or not any(map(_is_real, [*operation.inputs, *operation.outputs])):
            return 0
        if kind in _PER_OUTPUT:
            return _size(operation.outputs[0]) if _is_real(operation.outputs[0]) else 0
        if kind in _PER_INPUT:
            return sum(_size(x) for x in operation.inputs if _is_real(x))
        if kind in _COUNTED:
            return _COUNTED[kind](operation)
        if kind in ("PartitionedCall", "StatefulPartitionedCall"):
            return self._of_function(operation)
        if any(map(_is_real, operation.outputs)):
            raise UnknownFlops(kind)
        return 0  # comparisons, and what only acts, such as an assignment

    def _of_function(self, operation: Any) -> int:
        """Keras computes grouped convolutions in a function, for example."""
        if self._functions is None:
            library = self._graph.as_graph_def().library
            self._functions = {each.signature.name: each for each in library.function}
        definition = self._functions[operation.get_attr("f").name]
        traced = function_def_to_graph(definition)
        pairs = list(zip(traced.inputs, operation.inputs, strict=True))
        variables = {
            inner.op.name: (x.op.get_attr("dtype"), x.op.get_attr("shape"))
            for inner, x in pairs
            if x.op.type == "VarHandleOp"
        }
        graph_def = traced.as_graph_def()
        declare_variables(graph_def.node, variables)
        with tf.Graph().as_default() as body:
            tensors = {
                inner.name: v1.placeholder(x.dtype, x.shape, "argument")
                for inner, x in pairs
                if inner.op.name not in variables
            }
            tf.graph_util.import_graph_def(graph_def, input_map=tensors, name="")
        return sum(map(Flops(body).of, body.get_operations()))


def declare_variables(nodes: Iterable[Any], variables: Mapping[str, tuple[Any, Any]]) -> None:
    """Gives placeholders of variables, by name, their types and shapes, so that others follow."""
    for node in nodes:
        if node.name in variables:
            dtype, shape = variables[node.name]
            node.op = "VarHandleOp"
            node.ClearField("attr")
            node.attr["dtype"].type = tf.as_dtype(dtype).as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())


def _is_real(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _dims(tensor: Any) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise UnknownFlops
    return tensor.shape.as_list()


def _size(tensor: Any) -> int:
    return math.prod(_dims(tensor))


def _matmul(operation: Any) -> int:
    first = _dims(operation.inputs[0])
    transposed = "transpose_a" if operation.type == "MatMul" else "adj_x"
    return 2 * _size(operation.outputs[0]) * first[-2 if operation.get_attr(transposed) else -1]


def _convolution(operation: Any) -> int:
    """Its filter has the channels of one group, so that grouped ones are counted as well."""
    return 2 * _size(operation.outputs[0]) * math.prod(_dims(operation.inputs[1])[:-1])


def _depthwise(operation: Any) -> int:
    return 2 * _size(operation.outputs[0]) * math.prod(_dims(operation.inputs[1])[:2])


def _transposed(operation: Any) -> int:
    return 2 * _size(operation.inputs[2]) * math.prod(_dims(operation.inputs[1])[:-1])


def _einsum(operation: Any) -> int:
    """A product of two tensors sums over all of its labels."""
    left, _, _ = operation.get_attr("equation").decode().partition("->")
    sizes: dict[str, int] = {}
    batch = 1  # of the dimensions that an ellipsis stands for
    for labels, tensor in zip(left.split(","), operation.inputs, strict=True):
        dims, (before, dots, after) = _dims(tensor), labels.partition("...")
        if dots:
            batch = max(batch, math.prod(dims[len(before) : len(dims) - len(after)]))
            dims = dims[: len(before)] + dims[len(dims) - len(after) :]
        sizes.update(zip(before + after, dims, strict=True))
    return len(operation.inputs) * batch * math.prod(sizes.values())


def _pooling(operation: Any) -> int:
    return _size(operation.outputs[0]) * math.prod(operation.get_attr("ksize"))


def _softmax(operation: Any) -> int:
    return _PASSES_OF_SOFTMAX * _size(operation.inputs[0])


def _fused_norm(operation: Any) -> int:
    return _PASSES_OF_NORM[operation.get_attr("is_training")] * _size(operation.inputs[0])


def _bilinear(operation: Any) -> int:
    return 8 * _size(operation.outputs[0])  # three interpolations


_COUNTED: dict[str, Callable[[Any], int]] = {
    "MatMul": _matmul,
    **dict.fromkeys(["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"], _matmul),
    **dict.fromkeys(["Conv2D", "Conv3D"], _convolution),
    "DepthwiseConv2dNative": _depthwise,
    **dict.fromkeys(["Conv2DBackpropInput", "Conv3DBackpropInputV2"], _transposed),
    "Einsum": _einsum,
    **dict.fromkeys(["MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"], _pooling),
    **dict.fromkeys(["Softmax", "LogSoftmax"], _softmax),
    **dict.fromkeys(
        ["SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"], _softmax
    ),
    **dict.fromkeys(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"], _fused_norm),
    "ResizeBilinear": _bilinear,
}

"""LiteRT (TensorFlow Lite): Android, iOS and embedded devices."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core.optional import require
from towerpack.export.compare import in_batches
from towerpack.export.format import GraphListing, Runner, quiet
from towerpack.export.inference_graph import InferenceGraph
from towerpack.predict.predictor import inputs_of

Precision = Literal["float32", "float16", "int8"]
# Relative to the largest output. float16 rounds weights to 11 bits; int8 rounds weights and
# activations to 8 bits, and these errors add up in a deep network.
TOLERANCES: dict[str, float] = {"float32": 1e-4, "float16": 1e-2, "int8": 0.1}
MOST_CALIBRATION_BATCHES = 100
# The converter's messages for operations that LiteRT lacks, and that select-TF-ops lacks as well.
NEEDS_OTHER_OPS = re.compile(r"Flex|Select|Custom ops|NEEDS_CUSTOM_OPS")
CUSTOM_OPS = re.compile(r"Custom ops: (.*)")
# The names of operations of the select-TF-ops set in the file.
FLEX_OP = re.compile(rb"Flex([A-Z][A-Za-z0-9]+)")


def fixed_specs(specs: Sequence[Any], batch_size: int) -> list[Any]:
    """The inputs with this batch size; inputs with another fixed batch size are refused."""
    fixed = []
    for spec in specs:
        if not spec.shape.rank or spec.shape[0] not in (None, batch_size):
            raise ValueError(
                f"expected inputs that batch_size={batch_size} fits, received {spec.name!r} of "
                f"shape {spec.shape}"
            )
        fixed.append(tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype, spec.name))
    return fixed


def convert_to_litert(
    graph: InferenceGraph,
    precision: Precision,
    calibration: Iterable[Any] | None,
    batch_size: int | None = None,
) -> bytes:
    """The content of a `.tflite` file; operations that LiteRT lacks come from select-TF-ops."""
    if precision not in TOLERANCES:
        raise ValueError(f"expected a precision of {sorted(TOLERANCES)}, received {precision!r}")
    if (precision == "int8") != (calibration is not None):
        raise ValueError(
            "expected calibration= with precision='int8', and only then: a flow of typical inputs, "
            "which determine the ranges of activations"
        )
    samples = None if calibration is None else _samples(graph, calibration)
    concrete = graph.concrete
    if batch_size is not None:
        concrete = graph.concrete_for(fixed_specs(graph.specs, batch_size))
        if samples is not None:
            samples = [part for sample in samples for part in in_batches(sample, batch_size)]
    convert = functools.partial(_convert, graph, concrete, precision, samples)
    try:
        return convert(select=False)
    except Exception as error:  # the converter's class of errors is private
        if not NEEDS_OTHER_OPS.search(str(error)):
            raise
    try:
        return convert(select=True)
    except Exception as error:
        unknown = CUSTOM_OPS.search(str(error))
        if not unknown:
            raise
        raise ValueError(
            "expected operations of LiteRT or of its select-TF-ops set, received others: "
            f"{unknown[1].strip()}. Leave them out of the inference graph, or write them as a "
            "custom operation of LiteRT"
        ) from error


def select_tf_ops(content: bytes) -> list[str]:
    """Names of the operations in a `.tflite` file that need the select-TF-ops set."""
    return sorted({name.decode() for name in FLEX_OP.findall(content)})


def open_litert(path: Path) -> Runner:
    """Opens a `.tflite` file in LiteRT's interpreter."""
    module = require("ai_edge_litert.interpreter", extra="export")
    interpreter = module.Interpreter(model_content=path.read_bytes())
    runner = interpreter.get_signature_runner()
    dtypes = {key: detail["dtype"] for key, detail in runner.get_input_details().items()}

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        # Inputs that the outputs do not depend on are not in the file.
        outputs = runner(**{key: np.asarray(inputs[key], dtype) for key, dtype in dtypes.items()})
        return dict(outputs)

    run.interpreter = interpreter  # type: ignore[attr-defined] # the runner keeps no reference to it
    return run


def list_litert(path: Path) -> GraphListing:
    """Lists a `.tflite` file."""
    module = require("ai_edge_litert.interpreter", extra="export")
    content = path.read_bytes()
    try:
        interpreter = module.Interpreter(
            model_content=content,
            # Otherwise most of the nodes would be merged into one.
            experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"expected a LiteRT model in {path}: {error}") from error
    tensors = {detail["index"]: detail for detail in interpreter.get_tensor_details()}

    def row(detail: Any) -> tuple[str, str, str]:
        dims = ["?" if d < 0 else str(d) for d in detail["shape_signature"]]
        return detail["name"], detail["dtype"].__name__, f"[{'x'.join(dims)}]"

    nodes = []
    for operation in interpreter._get_ops_details():
        outputs = [tensors[i]["name"] for i in operation["outputs"] if i in tensors]
        nodes.append((outputs[0] if outputs else "", operation["op_name"], ""))
    return GraphListing(
        [row(detail) for detail in interpreter.get_input_details()],
        [row(detail) for detail in interpreter.get_output_details()],
        nodes,
        select_tf_ops(content),
    )


def _samples(graph: InferenceGraph, calibration: Iterable[Any]) -> list[dict[str, np.ndarray]]:
    keys = [spec.name for spec in graph.specs]
    samples = []
    for datapoint in calibration:
        arrays = inputs_of(datapoint, keys)[: len(keys)]
        samples.append({key: np.asarray(x) for key, x in zip(keys, arrays, strict=True)})
        if len(samples) == MOST_CALIBRATION_BATCHES:
            break
    if not samples:
        raise ValueError("expected a calibration flow with datapoints, received an empty one")
    return samples


def _convert(
    graph: InferenceGraph,
    concrete: Any,
    precision: Precision,
    samples: list[dict[str, np.ndarray]] | None,
    select: bool,
) -> bytes:
    holder = tf.Module()
    holder.variables_by_name = graph.variables
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder)
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if samples is not None:
        converter.representative_dataset = lambda: iter(samples)
    if select:
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.TFLITE_BUILTINS,
            tf.lite.OpsSet.SELECT_TF_OPS,
        ]
    with quiet():
        content: bytes = converter.convert()
    return content

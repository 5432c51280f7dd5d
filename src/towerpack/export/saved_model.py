"""SavedModel: TensorFlow's own format, for TensorFlow Serving, C++, Java, Go and Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tensorflow.core.protobuf import saved_model_pb2

from towerpack._tensorflow import tf
from towerpack.export.format import Runner
from towerpack.export.inference_graph import InferenceGraph

TOLERANCE = 1e-5  # the reloaded graph may be fused differently
DEFAULT_SIGNATURE = "serving_default"


def write_saved_model(graphs: Mapping[str, InferenceGraph], directory: Path) -> None:
    """Writes one signature for each graph; a variable that several of them read is saved once."""
    module = tf.Module()
    module.variables_by_name = {
        name: variable for graph in graphs.values() for name, variable in graph.variables.items()
    }
    signatures = {name: graph.concrete for name, graph in graphs.items()}
    tf.saved_model.save(module, str(directory), signatures=signatures)


def open_saved_model(directory: Path, signature: str = DEFAULT_SIGNATURE) -> Runner:
    loaded = tf.saved_model.load(str(directory))
    if signature not in loaded.signatures:
        raise KeyError(
            f"{directory} has no signature {signature!r}; it has {sorted(loaded.signatures)}"
        )
    function = loaded.signatures[signature]
    _, specs = function.structured_input_signature

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {
            key: tf.convert_to_tensor(inputs[key], spec.dtype) for key, spec in specs.items()
        }
        return {key: output.numpy() for key, output in function(**tensors).items()}

    run.loaded = loaded  # type: ignore[attr-defined] # the variables live as long as this does
    return run


def signature_tensors(directory: Path) -> dict[str, dict[str, dict[str, str]]]:
    """For each signature the tensor of each key, by the names that TensorFlow's C API expects."""
    content = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    found = {}
    for name, signature in content.meta_graphs[0].signature_def.items():
        if not name.startswith("__"):
            found[name] = {
                "inputs": {key: info.name for key, info in sorted(signature.inputs.items())},
                "outputs": {key: info.name for key, info in sorted(signature.outputs.items())},
            }
    return found

"""Names of variables in object-based checkpoints (`tf.train.Checkpoint`, SavedModel).

They are stored by the path of attributes that leads to them, with a graph of these objects beside,
which knows the variables' own names. TensorFlow does not publish the type of that graph; this is
the only file that reaches for it, and without it the paths are the names.
"""

from __future__ import annotations

import importlib

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def full_names(serialized: bytes) -> dict[str, str]:
    """Keys of the checkpoint to names of variables; a name that two objects have is left out."""
    try:
        module = importlib.import_module("tensorflow.core.protobuf.trackable_object_graph_pb2")
        graph = module.TrackableObjectGraph.FromString(serialized)
    except (ImportError, AttributeError):
        return {}
    names: dict[str, str] = {}
    keys: dict[str, set[str]] = {}
    for node in graph.nodes:
        for attribute in node.attributes:
            if attribute.full_name:
                names[attribute.checkpoint_key] = attribute.full_name
                keys.setdefault(attribute.full_name, set()).add(attribute.checkpoint_key)
    return {key: name for key, name in names.items() if len(keys[name]) == 1}

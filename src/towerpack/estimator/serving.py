"""The inputs of an exported model: specs of its features, or a function that parses requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.export import Signature
from towerpack.keras.data import Form, leaves

keras = tf.keras


@dataclass(frozen=True)
class ServingInputReceiver:
    """Placeholders of a request (`receiver_tensors`, by key), and the features made of them.

    `probe` has arrays for the placeholders, by key, on which the export is compared.
    """

    features: Any
    receiver_tensors: Any
    probe: Mapping[str, np.ndarray] | None = None


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any],
) -> Callable[[], ServingInputReceiver]:
    """A request has the features themselves; `features` are specs, or examples with a batch axis.

    The size of the batch stays open. The export is compared on the examples.
    """
    specs = dict(features)

    def receive() -> ServingInputReceiver:
        made, probe = {}, {}
        for key, given in specs.items():
            if not isinstance(given, tf.TensorSpec):
                probe[key] = np.asarray(given)
                given = tf.type_spec_from_value(probe[key])
            made[key] = v1.placeholder(given.dtype, [None, *given.shape[1:]], name=key)
        return ServingInputReceiver(made, made, probe if len(probe) == len(specs) else None)

    return receive


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any],
) -> Callable[[], ServingInputReceiver]:
    """A request has serialized `tf.train.Example`s as 'examples', which the graph parses."""
    specs = dict(feature_spec)

    def receive() -> ServingInputReceiver:
        examples = v1.placeholder(tf.string, [None], name="input_example_tensor")
        features = tf.io.parse_example(examples, specs)
        probe = {"examples": np.array([example_of(specs)] * 2, object)}
        return ServingInputReceiver(features, {"examples": examples}, probe)

    return receive


def example_of(feature_spec: Mapping[str, Any]) -> bytes:
    """A serialized example of zeros and empty texts."""
    example = tf.train.Example()
    for key, spec in feature_spec.items():
        size, feature = int(np.prod(spec.shape)), example.features.feature[key]
        if spec.dtype == tf.string:
            feature.bytes_list.value.extend([b""] * size)
        elif spec.dtype == tf.int64:
            feature.int64_list.value.extend([0] * size)
        else:
            feature.float_list.value.extend([0.0] * size)
    serialized: bytes = example.SerializeToString()
    return serialized


class ServingInput:
    """The form of the features, and a `Signature` that makes them of a request.

    `given` is a dict of `tf.TensorSpec`s by feature, one spec, or a function that builds a
    `ServingInputReceiver` of placeholders in a `tf.Graph`.
    """

    def __init__(self, given: Any):
        self._receiver: Any = None
        self.probe: Mapping[str, np.ndarray] | None = None
        if not callable(given):
            self.form = Form([(given, None, None)])
            self._keys = self._keys_of(given)
            return
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._receiver = given()
        for part in ("features", "receiver_tensors"):
            if not hasattr(self._receiver, part):
                raise TypeError(
                    "expected the function to return a ServingInputReceiver(features, "
                    f"receiver_tensors), received {self._receiver!r}"
                )
        self.form = Form([(self._receiver.features, None, None)])
        self.probe = getattr(self._receiver, "probe", None)

    @staticmethod
    def _keys_of(given: Any) -> list[str]:
        if isinstance(given, Mapping):
            return sorted(given)
        return [spec.name or f"x{n or ''}" for n, spec in enumerate(keras.tree.flatten(given))]

    def signature(self, outputs: Mapping[str, str]) -> Signature:
        """The function from requests to these outputs: names of tensors, by key."""
        names = [spec.name for spec in self.form.signature]
        if self._receiver is None:
            return Signature(dict(zip(self._keys, names, strict=True)), dict(outputs))
        tensors = self._receiver.receiver_tensors
        by_key = dict(tensors) if isinstance(tensors, Mapping) else {"inputs": tensors}
        specs = [tf.TensorSpec(t.shape, t.dtype, key) for key, t in by_key.items()]

        def features_of(*inputs: Any) -> Sequence[Any]:
            placed = zip(by_key.values(), inputs, strict=True)
            return tf.graph_util.import_graph_def(
                self._graph.as_graph_def(),
                input_map={placeholder.name: tensor for placeholder, tensor in placed},
                return_elements=[tensor.name for tensor in leaves(self._receiver.features)],
                name="request",
            )

        return Signature(names, dict(outputs), features_of, specs)

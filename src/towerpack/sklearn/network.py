"""The tower of an estimator: hidden layers, or a function of the user's, and the cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from towerpack._tensorflow import tf
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.tower import VariableStore, get_current_tower_context
from towerpack.tower.store import GLOBAL_STEP

ACTIVATIONS = {
    "identity": lambda x: x,
    "logistic": tf.sigmoid,
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
}
SOFTMAX, LOGISTIC, IDENTITY = "softmax", "logistic", "identity"
ALPHA, LOSS_SUM = "alpha", "loss_sum"
LOGITS = "logits"
CHUNK = 8192  # rows that are predicted at once: a sparse matrix becomes dense in chunks of it


class Form(NamedTuple):
    """What the graph of a network depends on. Two networks of one form have the same graph."""

    features: int
    outputs: int
    output: str  # one of SOFTMAX, LOGISTIC, IDENTITY
    dtype: str
    hidden: tuple[int, ...]
    activation: str
    tower_func: Callable[..., Any] | None

    @property
    def layers(self) -> list[tuple[int, int]]:
        """The shapes of the matrices of hidden layers and the output."""
        sizes = [self.features, *self.hidden, self.outputs]
        return list(itertools.pairwise(sizes))

    @property
    def signature(self) -> list[Any]:
        x = tf.TensorSpec([None, self.features], self.dtype, "x")
        y = tf.TensorSpec([None, self.outputs], self.dtype, "y")
        if self.output == SOFTMAX:
            y = tf.TensorSpec([None], tf.int32, "y")
        weights = tf.TensorSpec([None], self.dtype, "weights")
        factor = tf.TensorSpec([], self.dtype, "factor")
        return [x, y, weights, factor, tf.TensorSpec([], tf.float64, "share")]


def names(layer: int) -> tuple[str, str]:
    """The names of the matrix and the intercept of a layer."""
    return f"layer{layer}/W", f"layer{layer}/b"


class Network:
    """The tower function of a form. Its cost is that of scikit-learn's multi-layer perceptron."""

    def __init__(self, form: Form):
        self.form = form
        self.weight_names: list[str] = []  # of the model, without what training adds

    def tower(self, x: Any, y: Any, weights: Any, factor: Any, share: Any) -> Any:
        """The cost of a batch, which `Epochs` describes; its share is added to `LOSS_SUM`."""
        form, store, context = self.form, VariableStore.current(), get_current_tower_context()
        before = {GLOBAL_STEP, *store.variables}  # a Keras optimizer has made its own already
        logits = tf.identity(self.logits(x), name=LOGITS)
        if context is None or not context.is_training:
            return tf.zeros([])
        if not self.weight_names:
            self.weight_names = [name for name in store.variables if name not in before]
        alpha = store.make(ALPHA, lambda: tf.zeros([], form.dtype), trainable=False)
        matrices = [v for v in store.trainable().values() if v.shape.rank > 1]
        norms = [tf.cast(tf.nn.l2_loss(v), form.dtype) for v in matrices]
        penalty = alpha * tf.add_n(norms or [tf.zeros([], form.dtype)]) * factor
        data = tf.reduce_sum(self.losses(y, logits) * weights)
        cost = loss = data + penalty
        if form.output == IDENTITY and form.outputs > 1:
            loss = data / form.outputs + penalty  # scikit-learn reports the mean of the outputs
        # Not a scalar: each of several towers has its own sum, but scalars follow the first.
        loss_sum = store.make(LOSS_SUM, lambda: tf.zeros([1], tf.float64), trainable=False)
        loss_sum.assign_add([tf.cast(loss, tf.float64) * share])
        return cost

    def logits(self, x: Any) -> Any:
        """What the last layer computes, in the tower that is being built."""
        form, store = self.form, VariableStore.current()
        if form.tower_func is not None:
            found = form.tower_func(tf.cast(x, tf.float32), form.outputs)
            return tf.cast(checked_logits(found, form.outputs), form.dtype)

        def variable(name: str, shape: Sequence[int]) -> Any:
            return store.make(name, lambda: tf.zeros(shape, form.dtype), trainable=True)

        layers = []
        for number, shape in enumerate(form.layers):
            matrix, bias = names(number)
            layers.append((variable(matrix, shape), variable(bias, shape[1:])))
        return self.forward(x, layers)

    def forward(self, x: Any, layers: Sequence[tuple[Any, Any]]) -> Any:
        """The layers, of variables in a trace or of arrays at once."""
        activation = ACTIVATIONS[self.form.activation]
        *hidden, (matrix, intercept) = layers
        for weights, bias in hidden:
            x = activation(tf.nn.bias_add(tf.matmul(x, weights), bias))
        return tf.nn.bias_add(tf.matmul(x, matrix), intercept)

    def losses(self, y: Any, logits: Any) -> Any:
        """The loss of each row."""
        if self.form.output == SOFTMAX:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        if self.form.output == LOGISTIC:
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits)
        else:
            each = 0.5 * tf.math.squared_difference(logits, y)
        return tf.reduce_sum(each, axis=1)

    def predictor(self, weights: Mapping[str, Any]) -> Callable[[Any], np.ndarray]:
        """A function from rows to logits. Hidden layers need no trace, so it costs nothing."""
        if self.form.tower_func is None:
            count = sum(names(number)[0] in weights for number in range(len(weights)))
            layers = [(weights[w], weights[b]) for w, b in map(names, range(count))]
            return in_chunks(lambda x: self.forward(tf.constant(x), layers).numpy())
        predict = OfflinePredictor(
            PredictConfig(
                tower_func=self.tower,
                input_signature=self.form.signature,
                input_names=["x"],
                output_names=[LOGITS],
                session_init=dict(weights),
            )
        )
        return in_chunks(lambda x: predict(x)[0])


def in_chunks(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], np.ndarray]:
    """Calls a function with some rows at a time, which are dense then."""

    def parts(x: Any) -> Iterator[np.ndarray]:
        for begin in range(0, x.shape[0], CHUNK):
            rows = x[begin : begin + CHUNK]
            yield function(rows if isinstance(rows, np.ndarray) else rows.toarray())

    return lambda x: np.concatenate(list(parts(x)))


def checked_logits(logits: Any, outputs: int) -> Any:
    """What a tower function of the user's returned, if it has a column for each output."""
    shape = getattr(logits, "shape", None)
    if shape is None or shape.rank != 2 or shape[1] != outputs:
        raise ValueError(
            f"expected tower_func(x, outputs) to return logits of shape [batch, {outputs}], "
            f"received {logits!r}"
        )
    return logits

"""Estimators with a model: linear ones, networks, and the two together."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.core.similar import nearest_first
from towerpack.estimator.estimator import Estimator
from towerpack.estimator.feature_column import Column, dense_features, linear_model
from towerpack.estimator.heads import ClassHead, Head, RegressionHead
from towerpack.estimator.run_config import RunConfig
from towerpack.estimator.spec import EstimatorSpec
from towerpack.models import BatchNorm, Dropout

keras = tf.keras
DNN_RATE, LINEAR_RATE, COMBINED_LINEAR_RATE = 0.05, 0.2, 0.005  # of optimizers given by name
OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "Adagrad": v1.train.AdagradOptimizer,
    "Adam": v1.train.AdamOptimizer,
    "Ftrl": v1.train.FtrlOptimizer,
    "RMSProp": v1.train.RMSPropOptimizer,
    "SGD": v1.train.GradientDescentOptimizer,
}


class Network:
    """A part of a canned model: logits from features, and the optimizer of its variables.

    The name of the part is the first part of the names of its variables.
    """

    name: str

    def __init__(self, columns: Sequence[Column], optimizer: Any, rate: float):
        if not columns:
            raise ValueError(f"expected at least one feature column for {type(self).__name__}")
        self.columns, self.optimizer, self.rate = list(columns), optimizer, rate

    def logits(self, features: Mapping[str, Any], units: int) -> Any:
        raise NotImplementedError

    def make_optimizer(self) -> Any:
        """A new optimizer: each run, and each device with variables of its own, needs one."""
        given = self.optimizer
        if isinstance(given, str):
            if given not in OPTIMIZERS:
                raise ValueError(
                    f"expected an optimizer or a name, {nearest_first(given, OPTIMIZERS)}, "
                    f"received {given!r}"
                )
            return OPTIMIZERS[given](self.rate)
        if isinstance(given, keras.optimizers.Optimizer):
            return type(given).from_config(given.get_config())
        if callable(given) and not hasattr(given, "apply_gradients"):
            return given()
        return copy.deepcopy(given)


class LinearNetwork(Network):
    name = "linear"

    def __init__(
        self, columns: Sequence[Column], optimizer: Any, combiner: str, rate: float = LINEAR_RATE
    ):
        super().__init__(columns, optimizer, min(rate, 1 / math.sqrt(len(columns) or 1)))
        self.combiner = combiner

    def logits(self, features: Mapping[str, Any], units: int) -> Any:
        with v1.variable_scope("linear/linear_model"):
            return linear_model(features, self.columns, units, self.combiner)


class DeepNetwork(Network):
    name = "dnn"

    def __init__(
        self,
        columns: Sequence[Column],
        optimizer: Any,
        hidden_units: Sequence[int],
        activation_fn: Callable[[Any], Any],
        dropout: float | None,
        batch_norm: bool,
    ):
        super().__init__(columns, optimizer, DNN_RATE)
        self.hidden_units, self.activation = list(hidden_units), activation_fn
        self.dropout, self.batch_norm = dropout, batch_norm

    def logits(self, features: Mapping[str, Any], units: int) -> Any:
        with v1.variable_scope("dnn"):
            with v1.variable_scope("input_from_feature_columns/input_layer"):
                x = dense_features(features, self.columns)
            for number, width in enumerate(self.hidden_units):
                x = self.activation(dense(f"hiddenlayer_{number}", x, width))
                if self.dropout:
                    x = Dropout(f"dropout_{number}", x, rate=self.dropout)
                if self.batch_norm:
                    x = BatchNorm(f"batchnorm_{number}", x)
            return dense("logits", x, units)


def dense(name: str, x: Any, units: int) -> Any:
    """A fully connected layer with the names that TensorFlow's own have."""
    with v1.variable_scope(name):
        kernel = v1.get_variable(
            "kernel", [x.shape[-1], units], initializer=v1.glorot_uniform_initializer()
        )
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        return tf.matmul(x, kernel) + bias


class CannedEstimator(Estimator):
    """An Estimator whose logits are the sum of those of its networks."""

    def __init__(
        self,
        head: Head,
        networks: Sequence[Network],
        model_dir: str | Path | None,
        config: RunConfig | None,
        warm_start_from: Any,
    ):
        model_fn = functools.partial(canned_model, head=head, networks=networks)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


def canned_model(
    features: Any, labels: Any, mode: str, head: Head, networks: Sequence[Network]
) -> EstimatorSpec:
    parts = [network.logits(features, head.units) for network in networks]
    optimizers = {network.name: network.make_optimizer for network in networks}
    return head.spec(features, labels, mode, tf.add_n(parts), optimizers)


class LinearClassifier(CannedEstimator):
    """A linear model of classes; labels are integers from 0, or those of `label_vocabulary`.

    `class_weight` is a dict of weights by class, 1 for all others. An `optimizer` is a name, an
    optimizer, or a function that makes one.
    """

    def __init__(
        self,
        feature_columns: Sequence[Column],
        model_dir: str | Path | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        sparse_combiner: str = "sum",
        class_weight: Any = None,
    ):
        head = ClassHead(n_classes, label_vocabulary, weight_column, class_weight)
        networks = [LinearNetwork(feature_columns, optimizer, sparse_combiner)]
        super().__init__(head, networks, model_dir, config, warm_start_from)


class LinearRegressor(CannedEstimator):
    """A linear model of `label_dimension` numbers."""

    def __init__(
        self,
        feature_columns: Sequence[Column],
        model_dir: str | Path | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        sparse_combiner: str = "sum",
    ):
        head = RegressionHead(label_dimension, weight_column)
        networks = [LinearNetwork(feature_columns, optimizer, sparse_combiner)]
        super().__init__(head, networks, model_dir, config, warm_start_from)


class DNNClassifier(CannedEstimator):
    """A network of fully connected layers for classes; see `LinearClassifier`."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Column],
        model_dir: str | Path | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
        class_weight: Any = None,
    ):
        head = ClassHead(n_classes, label_vocabulary, weight_column, class_weight)
        layers = hidden_units, activation_fn, dropout, batch_norm
        networks = [DeepNetwork(feature_columns, optimizer, *layers)]
        super().__init__(head, networks, model_dir, config, warm_start_from)


class DNNRegressor(CannedEstimator):
    """A network of fully connected layers for `label_dimension` numbers."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Column],
        model_dir: str | Path | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ):
        head = RegressionHead(label_dimension, weight_column)
        layers = hidden_units, activation_fn, dropout, batch_norm
        networks = [DeepNetwork(feature_columns, optimizer, *layers)]
        super().__init__(head, networks, model_dir, config, warm_start_from)


class DNNLinearCombinedClassifier(CannedEstimator):
    """A linear model and a network, trained together, each by its own optimizer ("wide and deep").

    See `LinearClassifier`.
    """

    def __init__(
        self,
        model_dir: str | Path | None = None,
        linear_feature_columns: Sequence[Column] = (),
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Column] = (),
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] = (),
        dnn_activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
        class_weight: Any = None,
    ):
        head = ClassHead(n_classes, label_vocabulary, weight_column, class_weight)
        linear = linear_feature_columns, linear_optimizer, linear_sparse_combiner
        layers = dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm
        networks = combined(linear, (dnn_feature_columns, dnn_optimizer, *layers))
        super().__init__(head, networks, model_dir, config, warm_start_from)


class DNNLinearCombinedRegressor(CannedEstimator):
    """A linear model and a network for `label_dimension` numbers, trained together."""

    def __init__(
        self,
        model_dir: str | Path | None = None,
        linear_feature_columns: Sequence[Column] = (),
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Column] = (),
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] = (),
        dnn_activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ):
        head = RegressionHead(label_dimension, weight_column)
        linear = linear_feature_columns, linear_optimizer, linear_sparse_combiner
        layers = dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm
        networks = combined(linear, (dnn_feature_columns, dnn_optimizer, *layers))
        super().__init__(head, networks, model_dir, config, warm_start_from)


def combined(linear: tuple[Any, Any, str], deep: tuple[Any, ...]) -> list[Network]:
    """The networks that have columns."""
    networks: list[Network] = []
    columns, optimizer, combiner = linear
    if columns:
        networks.append(LinearNetwork(columns, optimizer, combiner, COMBINED_LINEAR_RATE))
    if deep[0]:
        networks.append(DeepNetwork(*deep))
    if not networks:
        raise ValueError("expected linear_feature_columns or dnn_feature_columns, received none")
    return networks

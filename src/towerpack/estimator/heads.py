"""The end of a canned model: its loss, its predictions and its metrics from logits and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.dataflow import class_weights
from towerpack.estimator.feature_column import (
    categorical_column_with_vocabulary_list,
    checked,
    feature,
)
from towerpack.estimator.spec import EstimatorSpec, ModeKeys

keras = tf.keras
THRESHOLDS = 200  # of the areas under curves, as in TensorFlow


class Baseline(keras.metrics.Mean):  # type: ignore[name-defined]
    """The accuracy of always predicting the more frequent of two classes."""

    def result(self) -> Any:
        mean = super().result()
        return tf.maximum(mean, 1 - mean)


class Head:
    """Makes a spec of logits; a subclass defines `_labels`, `_losses`, `_predictions`, `_metrics`.

    The loss is the sum of the weighted losses of the samples, divided by their number.
    """

    def __init__(self, units: int, weight_column: Any = None):
        self.units, self._weight_column = units, weight_column

    def spec(
        self, features: Mapping[str, Any], labels: Any, mode: str, logits: Any, optimizer: Any
    ) -> EstimatorSpec:
        predictions = self._predictions(logits)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions)
        if labels is None:
            raise ValueError(f"expected an input_fn that returns (features, labels) to {mode}")
        found = self._labels(labels)
        losses = self._losses(found, logits)
        weights = self._weights(features, found)
        loss = tf.reduce_mean(losses * weights)
        if mode == ModeKeys.TRAIN:
            return EstimatorSpec(mode, predictions, loss, optimizer=optimizer)
        metrics: dict[str, Any] = {"average_loss": keras.metrics.Mean()}
        metrics["average_loss"].update_state(losses, weights)
        metrics |= self._metrics(found, predictions, weights)
        return EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)

    def _weights(self, features: Mapping[str, Any], labels: Any) -> Any:
        """The weight of each sample, `[batch, 1]`."""
        column = self._weight_column
        if column is None:
            return tf.ones([tf.shape(labels)[0], 1])
        if not isinstance(column, str):
            return column.numbers(features)
        return tf.reshape(tf.cast(feature(features, column), tf.float32), [-1, 1])

    def _labels(self, labels: Any) -> Any:
        """The labels as the losses take them, `[batch, n]`."""
        raise NotImplementedError

    def _losses(self, labels: Any, logits: Any) -> Any:
        raise NotImplementedError

    def _predictions(self, logits: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _metrics(self, labels: Any, predictions: Mapping[str, Any], weights: Any) -> dict[str, Any]:
        raise NotImplementedError


class RegressionHead(Head):
    """Squared errors of `units` numbers."""

    def _labels(self, labels: Any) -> Any:
        return tf.reshape(tf.cast(labels, tf.float32), [-1, self.units])

    def _losses(self, labels: Any, logits: Any) -> Any:
        return tf.square(logits - labels)

    def _predictions(self, logits: Any) -> dict[str, Any]:
        return {"predictions": logits}

    def _metrics(self, labels: Any, predictions: Mapping[str, Any], weights: Any) -> dict[str, Any]:
        metrics = {"label/mean": keras.metrics.Mean(), "prediction/mean": keras.metrics.Mean()}
        metrics["label/mean"].update_state(labels, weights)
        metrics["prediction/mean"].update_state(predictions["predictions"], weights)
        return metrics


class ClassHead(Head):
    """Cross entropy of classes: of one logit for two of them, otherwise of a logit for each."""

    def __init__(
        self,
        n_classes: int,
        label_vocabulary: Sequence[str] | None = None,
        weight_column: Any = None,
        class_weight: Any = None,
    ):
        if n_classes < 2:
            raise ValueError(f"expected n_classes of at least 2, received {n_classes}")
        if label_vocabulary is not None and len(label_vocabulary) != n_classes:
            raise ValueError(
                f"expected a label_vocabulary of {n_classes} classes, received {label_vocabulary}"
            )
        super().__init__(1 if n_classes == 2 else n_classes, weight_column)
        self.n_classes, self._vocabulary = n_classes, label_vocabulary
        self._class_weights = self._table(class_weight)

    def _table(self, class_weight: Any) -> np.ndarray | None:
        """The weight of each class."""
        if class_weight is None:
            return None
        if not isinstance(class_weight, Mapping):
            raise TypeError(
                f"expected class_weight as a dict by class, received {class_weight!r}: the labels "
                "are not known before training. Pass "
                "class_weight=towerpack.class_weights(labels, 'balanced'), or "
                "class_weight='resample' to numpy_input_fn"
            )
        classes = list(self._vocabulary or range(self.n_classes))
        weights = class_weights(classes, class_weight)
        return np.array([weights[each] for each in classes], np.float32)

    def _weights(self, features: Mapping[str, Any], labels: Any) -> Any:
        weights = super()._weights(features, labels)
        return (
            weights
            if self._class_weights is None
            else weights * tf.gather(self._class_weights, labels)
        )

    def _labels(self, labels: Any) -> Any:
        labels = tf.reshape(labels, [-1, 1])
        if self._vocabulary is not None:
            column = categorical_column_with_vocabulary_list("label", self._vocabulary)
            ids = column.ids({"label": labels})
        elif labels.dtype == tf.string:
            raise ValueError("expected label_vocabulary= for labels of text, received none")
        else:
            ids = tf.cast(labels, tf.int64)
        expected = self._vocabulary or f"integers from 0 to {self.n_classes - 1}"
        return checked(ids, (ids >= 0) & (ids < self.n_classes), f"expected labels: {expected}")

    def _losses(self, labels: Any, logits: Any) -> Any:
        if self.units == 1:
            return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[:, 0], logits)
        return losses[:, None]

    def _predictions(self, logits: Any) -> dict[str, Any]:
        found = {"logits": logits}
        if self.units == 1:
            found["logistic"] = tf.sigmoid(logits)
            found["probabilities"] = tf.nn.softmax(tf.concat([tf.zeros_like(logits), logits], 1))
        else:
            found["probabilities"] = tf.nn.softmax(logits)
        found["class_ids"] = tf.argmax(found["probabilities"], axis=1)[:, None]
        names = self._vocabulary or [str(number) for number in range(self.n_classes)]
        found["classes"] = tf.gather(tf.constant(names), found["class_ids"])
        return found

    def _metrics(self, labels: Any, predictions: Mapping[str, Any], weights: Any) -> dict[str, Any]:
        kinds = keras.metrics
        metrics: dict[str, Any] = {"accuracy": kinds.Accuracy()}
        metrics["accuracy"].update_state(labels, predictions["class_ids"], weights)
        if self.units > 1:
            return metrics
        classes, chances = predictions["class_ids"], predictions["logistic"]
        for name, metric, values in (
            ("auc", kinds.AUC(THRESHOLDS), (labels, chances)),
            ("auc_precision_recall", kinds.AUC(THRESHOLDS, curve="PR"), (labels, chances)),
            ("precision", kinds.Precision(), (labels, classes)),
            ("recall", kinds.Recall(), (labels, classes)),
            ("label/mean", kinds.Mean(), (labels,)),
            ("accuracy_baseline", Baseline(), (labels,)),
            ("prediction/mean", kinds.Mean(), (chances,)),
        ):
            metric.update_state(*values, sample_weight=weights)
            metrics[name] = metric
        return metrics

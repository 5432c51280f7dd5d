"""What is computed over a validation set: means, errors, and statistics of classifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.callbacks.base import name_list
from towerpack.callbacks.drawing import confusion_picture, curve_picture
from towerpack.callbacks.inference import Inferencer
from towerpack.core import logger
from towerpack.tower import get_op_tensor_name


class _Named(Inferencer):
    """Fetches the tensors of `names`."""

    names: list[str]

    def _get_fetches(self) -> list[str]:
        return self.names


class ScalarStats(_Named):
    """The mean of scalar tensors over a set, logged as `<prefix>_<name>`.

    Each batch is weighted by its number of samples, so that means of batches (a cost, an accuracy)
    become the mean over all samples, even if the last batch is smaller. If the size of a batch is
    unknown because the inputs differ in their first dimension, all batches have the same weight,
    and a warning is logged. For other weights, such as numbers of words, write an `Inferencer`.

    >>> stats = ScalarStats(["cost", "accuracy"])
    """

    def __init__(self, names: str | Sequence[str], prefix: str = "validation"):
        self.names = name_list(names)
        self.prefix = prefix
        self._warned = False

    def _before_inference(self) -> None:
        self._values: list[list[float]] = []
        self._sizes: list[int | None] = []

    def _on_fetches(self, values: list[Any]) -> None:
        for name, value in zip(self.names, values, strict=True):
            if np.ndim(value):
                raise ValueError(
                    f"ScalarStats expects scalars, but {name!r} has shape {np.shape(value)}"
                )
        if self.batch_size == 0:  # the mean of no samples is NaN
            return
        self._values.append([float(value) for value in values])
        self._sizes.append(self.batch_size)

    def _after_inference(self) -> dict[str, float]:
        means = np.average(self._values, axis=0, weights=self._weights())
        ops = [get_op_tensor_name(name)[0] for name in self.names]
        return {
            f"{self.prefix}_{op}" if self.prefix else op: float(mean)
            for op, mean in zip(ops, means, strict=True)
        }

    def _weights(self) -> list[int] | None:
        known = [size for size in self._sizes if size is not None]
        if len(known) == len(self._sizes):
            return known
        if not self._warned:
            self._warned = True
            logger.warning(
                "ScalarStats gives every batch of %s the same weight: the inputs differ in their "
                "first dimension, so the number of samples in a batch is unknown",
                self.names,
            )
        return None


class ClassificationError(_Named):
    """The share of wrong samples in the whole set, exact for batches of any size.

    `wrong_tensor` is a vector with 1 (or True) for each wrong sample of a batch. It is summed in
    float64, whatever its type.
    """

    def __init__(
        self, wrong_tensor: str = "incorrect_vector", summary_name: str = "validation_error"
    ):
        self.wrong_tensor, self.summary_name = wrong_tensor, summary_name
        self.names = [wrong_tensor]

    def _before_inference(self) -> None:
        self._wrong, self._total = 0.0, 0

    def _on_fetches(self, values: list[Any]) -> None:
        (vector,) = values
        if np.ndim(vector) != 1:
            raise ValueError(
                f"expected {self.wrong_tensor!r} to be a vector with one value per sample, "
                f"received shape {np.shape(vector)}"
            )
        self._wrong += float(np.sum(np.asarray(vector, np.float64)))
        self._total += len(vector)

    def _after_inference(self) -> dict[str, float]:
        return {self.summary_name: self._wrong / self._total if self._total else math.nan}


class BinaryClassificationStats(_Named):
    """Precision and recall of a binary decision over the whole set.

    `pred_tensor_name` and `label_tensor_name` are vectors of 0 and 1. Logged as
    `<prefix>_precision` and `<prefix>_recall`; 0 if the divisor is 0.

    >>> stats = BinaryClassificationStats("decision", "label")
    """

    def __init__(self, pred_tensor_name: str, label_tensor_name: str, prefix: str = "val"):
        self.names, self.prefix = [pred_tensor_name, label_tensor_name], prefix

    def _before_inference(self) -> None:
        self._hits = self._predicted = self._real = 0

    def _on_fetches(self, values: list[Any]) -> None:
        prediction, label = (np.asarray(value) for value in values)
        for name, array in zip(self.names, (prediction, label), strict=True):
            if not np.isin(array, (0, 1)).all():
                raise ValueError(f"expected 0 and 1 in {name!r}, received {np.unique(array)[:5]}")
        if prediction.shape != label.shape:
            raise ValueError(
                f"expected {self.names} to have the same shape, received {prediction.shape} and "
                f"{label.shape}"
            )
        self._hits += int(np.sum((prediction == 1) & (label == 1)))
        self._predicted += int(np.sum(prediction == 1))
        self._real += int(np.sum(label == 1))

    def _after_inference(self) -> dict[str, float]:
        return {
            f"{self.prefix}_precision": self._hits / self._predicted if self._predicted else 0.0,
            f"{self.prefix}_recall": self._hits / self._real if self._real else 0.0,
        }


class ConfusionMatrix(_Named):
    """Counts which class was predicted for which, and logs the counts as a picture.

    `scores` is [N, classes] (the largest wins) or a vector of classes; `labels` is a vector of
    classes. A label without a column of scores, or a score that is NaN, is an error. `matrix[i, j]`
    counts samples of class i predicted as j. Scalars: `<name>_accuracy` and `<name>_macro_f1`, the
    mean over the classes that occur. The picture needs matplotlib; `picture=False` omits it.
    """

    def __init__(
        self,
        scores: str = "prob",
        labels: str = "label",
        name: str = "validation",
        class_names: Sequence[str] | None = None,
        picture: bool = True,
    ):
        self.names, self.name = [scores, labels], name
        self.class_names = None if class_names is None else list(class_names)
        self.picture = picture

    def _before_inference(self) -> None:
        size = len(self.class_names) if self.class_names else 0
        self.matrix = np.zeros((size, size), np.int64)

    def _on_fetches(self, values: list[Any]) -> None:
        scores, labels = (np.asarray(value) for value in values)
        if scores.ndim not in (1, 2) or labels.shape != scores.shape[:1]:
            raise ValueError(
                f"expected one score (or row of scores) and one label per sample, received "
                f"{self.names[0]!r} of shape {scores.shape} and {self.names[1]!r} of shape "
                f"{labels.shape}"
            )
        if scores.ndim == 2:
            width = scores.shape[1]
            predicted = _without_nan(scores, self.names[0]).argmax(axis=1)
            labels = _classes(labels, self.names[1], width)
        else:
            predicted, labels = (_classes(*pair) for pair in zip(values, self.names, strict=True))
            width = int(max(predicted.max(initial=-1), labels.max(initial=-1))) + 1
        size = max(width, len(self.matrix))
        if self.class_names and size > len(self.class_names):
            raise ValueError(f"expected {len(self.class_names)} classes, received class {size - 1}")
        if size > len(self.matrix):
            grown = size - len(self.matrix)
            self.matrix = np.pad(self.matrix, (0, grown))
        np.add.at(self.matrix, (labels, predicted), 1)

    def _after_inference(self) -> dict[str, float]:
        if self.picture:
            image = confusion_picture(self.matrix, self._labels())
            self.trainer.monitors.put_image(f"{self.name}_confusion", image)
        _, _, f1 = class_scores(self.matrix)
        f1 = f1[(self.matrix.sum(axis=0) + self.matrix.sum(axis=1)) > 0]
        total = self.matrix.sum()
        return {
            f"{self.name}_accuracy": float(np.trace(self.matrix) / total) if total else 0.0,
            f"{self.name}_macro_f1": float(f1.mean()) if len(f1) else 0.0,
        }

    def _labels(self) -> list[str]:
        return self.class_names or [str(number) for number in range(len(self.matrix))]


class ClassReport(ConfusionMatrix):
    """Precision, recall and F1 of each class, as a table in the log and a picture.

    It is a `ConfusionMatrix` that also logs a table and, with `per_class=True`, the scalars
    `<name>_recall/<class>`.
    """

    def __init__(self, *args: Any, per_class: bool = False, **options: Any):
        super().__init__(*args, **options)
        self.per_class = per_class

    def _after_inference(self) -> dict[str, float]:
        logger.info("%s, by class:\n%s", self.name, self.table())
        scalars = super()._after_inference()
        if self.per_class:
            _, recall, _ = class_scores(self.matrix)
            for label, value in zip(self._labels(), recall, strict=True):
                scalars[f"{self.name}_recall/{label}"] = float(value)
        return scalars

    def table(self) -> str:
        """One line for each class."""
        precision, recall, f1 = class_scores(self.matrix)
        width = max([5, *(len(label) for label in self._labels())])
        lines = [f"{'class':<{width}}  precision  recall      F1  samples"]
        lines += [
            f"{label:<{width}}  {p:9.4f}  {r:6.4f}  {f:6.4f}  {count:7d}"
            for label, p, r, f, count in zip(
                self._labels(), precision, recall, f1, self.matrix.sum(axis=1), strict=True
            )
        ]
        return "\n".join(lines)


class TopK(_Named):
    """The share of samples whose class is not among the k highest scores, as `<name>_top<k>_error`.

    Of equal scores, the lower class ranks higher. A label without a column of scores is an error,
    and so is a score that is NaN.
    """

    def __init__(
        self,
        scores: str = "prob",
        labels: str = "label",
        k: int | Sequence[int] = (1, 5),
        name: str = "validation",
    ):
        self.names, self.name = [scores, labels], name
        self.ks = [k] if isinstance(k, int) else list(k)
        if not self.ks or min(self.ks) < 1:
            raise ValueError(f"expected k of at least 1, received {k}")

    def _before_inference(self) -> None:
        self._wrong, self._total = np.zeros(len(self.ks), np.int64), 0

    def _on_fetches(self, values: list[Any]) -> None:
        scores, labels = (np.asarray(value) for value in values)
        if scores.ndim != 2 or labels.shape != scores.shape[:1]:
            raise ValueError(
                f"expected scores [N, classes] and labels [N], received {scores.shape} and "
                f"{labels.shape}"
            )
        labels = _classes(labels, self.names[1], scores.shape[1])
        scores = _without_nan(scores, self.names[0]).astype(
            np.float64
        )  # unsigned types have no negative
        order = np.argsort(-scores, axis=1, kind="stable")
        rank = (order == labels[:, None]).argmax(axis=1)
        self._wrong += [int((rank >= k).sum()) for k in self.ks]
        self._total += len(labels)

    def _after_inference(self) -> dict[str, float]:
        return {
            f"{self.name}_top{k}_error": float(wrong / self._total) if self._total else math.nan
            for k, wrong in zip(self.ks, self._wrong, strict=True)
        }


class RocCurve(_Named):
    """The area under the ROC curve of a binary score, as `<name>_auc`, with the curve as a picture.

    Exact: all scores are kept (8 bytes each), and equal scores count half. `scores` is a vector, or
    [N, 2], whose second column is used; `labels` is a vector of 0 and 1. If only one class occurs,
    the area is `nan`.
    """

    def __init__(
        self,
        scores: str = "prob",
        labels: str = "label",
        name: str = "validation",
        picture: bool = True,
    ):
        self.names, self.name, self.picture = [scores, labels], name, picture

    def _before_inference(self) -> None:
        self._scores: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def _on_fetches(self, values: list[Any]) -> None:
        scores, labels = (np.asarray(value) for value in values)
        if scores.ndim == 2 and scores.shape[1] == 2:
            scores = scores[:, 1]
        if scores.shape != labels.shape or labels.ndim != 1 or not np.isin(labels, (0, 1)).all():
            raise ValueError(
                "expected a vector of scores and one of labels 0 and 1, received shapes "
                f"{scores.shape} and {labels.shape} with labels {np.unique(labels)[:5]}"
            )
        self._scores.append(_without_nan(scores, self.names[0]).astype(np.float64))
        self._labels.append(labels.astype(bool))

    def _after_inference(self) -> dict[str, float]:
        false_rate, true_rate = roc_curve(
            np.concatenate(self._scores), np.concatenate(self._labels)
        )
        area = float(np.trapezoid(true_rate, false_rate))
        if self.picture and np.isfinite(area):
            image = curve_picture(
                false_rate, true_rate, f"AUC {area:.4f}", "false positives", "true positives"
            )
            self.trainer.monitors.put_image(f"{self.name}_roc", image)
        return {f"{self.name}_auc": area}


def _classes(array: Any, name: str, count: int | None = None) -> np.ndarray:
    """The classes in `array` as integers; raises unless they are >= 0, and < `count` if given."""
    array = np.asarray(array)
    classes = array.astype(np.int64)
    wrong = (classes != array) | (classes < 0)
    if count is not None:
        wrong |= classes >= count
    if wrong.any():
        known = "integers >= 0" if count is None else f"integers from 0 to {count - 1}"
        raise ValueError(
            f"expected classes in {name!r}, {known}, received {np.unique(array[wrong])[:5]} for "
            f"{int(wrong.sum())} of {len(array)} samples; remove such samples from the set"
        )
    return classes


def _without_nan(scores: np.ndarray, name: str) -> np.ndarray:
    """The scores; raises for NaN, which cannot be ordered."""
    if np.isnan(scores).any():
        raise ValueError(f"expected numbers in {name!r}, received NaN from the model")
    return scores


def class_scores(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F1 of each class; 0 if the divisor is 0."""
    hits = np.diag(matrix).astype(np.float64)
    predicted, real = matrix.sum(axis=0), matrix.sum(axis=1)
    precision = hits / np.maximum(predicted, 1)
    recall = hits / np.maximum(real, 1)
    f1 = 2 * hits / np.maximum(predicted + real, 1)
    return precision, recall, f1


def roc_curve(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False and true positive rates, from the highest threshold to the lowest."""
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    ends = np.flatnonzero(np.append(np.diff(scores) != 0, True))  # equal scores are one point
    true, false = np.cumsum(positive)[ends], np.cumsum(~positive)[ends]
    with np.errstate(invalid="ignore"):
        return (
            np.append(0.0, false) / np.float64(false[-1]),
            np.append(0.0, true) / np.float64(true[-1]),
        )

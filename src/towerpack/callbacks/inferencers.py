"""Inferencers: means, errors and statistics of classifiers over a validation set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.callbacks.base import name_list, scalars
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
        numbers = scalars(self, self.names, values)
        if self.batch_size != 0:  # the mean of no samples is NaN
            self._values.append(numbers)
            self._sizes.append(self.batch_size)

    def _after_inference(self) -> dict[str, float]:
        known = [size for size in self._sizes if size is not None]
        weights = known if len(known) == len(self._sizes) else None
        if weights is None and not self._warned:
            self._warned = True
            logger.warning(
                "ScalarStats gives every batch of %s the same weight: the inputs differ in their "
                "first dimension, so the number of samples in a batch is unknown",
                self.names,
            )
        means = np.average(self._values, axis=0, weights=weights)
        prefix = f"{self.prefix}_" if self.prefix else ""
        ops = [get_op_tensor_name(name)[0] for name in self.names]
        return {f"{prefix}{op}": float(mean) for op, mean in zip(ops, means, strict=True)}


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
            shape = np.shape(vector)
            raise ValueError(f"expected {self.wrong_tensor!r} to be a vector, received {shape}")
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
        prediction, label = map(_classes, values, self.names, (2, 2))
        shapes = prediction.shape, label.shape
        if shapes[0] != shapes[1]:
            raise ValueError(f"expected {self.names} to have the same shape, received {shapes}")
        self._hits += int(np.sum(prediction * label))
        self._predicted += int(np.sum(prediction))
        self._real += int(np.sum(label))

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
    mean over the classes that occur. `picture=False` logs no picture, which needs matplotlib. The
    report shows how often each class occurs.
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
        scores, labels = _scores_and_labels(values, self.names, (1, 2))
        if scores.ndim == 2:
            predicted = _without_nan(scores, self.names[0]).argmax(axis=1)
            labels = _classes(labels, self.names[1], scores.shape[1])
        else:
            predicted, labels = map(_classes, (scores, labels), self.names)
        largest = max(predicted.max(initial=-1), labels.max(initial=-1))
        size = max(largest + 1, len(self.matrix), *scores.shape[1:])
        if self.class_names and size > len(self.class_names):
            raise ValueError(f"expected {len(self.class_names)} classes, received class {size - 1}")
        self.matrix = np.pad(self.matrix, (0, size - len(self.matrix)))
        np.add.at(self.matrix, (labels, predicted), 1)

    def _after_inference(self) -> dict[str, float]:
        counts = dict(zip(self._labels(), self.matrix.sum(axis=1).tolist(), strict=True))
        self.trainer.monitors.put_classes(self.name, counts)
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
    """A `ConfusionMatrix` that also logs a table of precision, recall and F1 of each class."""

    def _after_inference(self) -> dict[str, float]:
        labels, counts = self._labels(), self.matrix.sum(axis=1)
        width = max([5, *map(len, labels)])
        lines = [f"{'class':<{width}}  precision  recall      F1  samples"]
        for label, p, r, f, n in zip(labels, *class_scores(self.matrix), counts, strict=True):
            lines.append(f"{label:<{width}}  {p:9.4f}  {r:6.4f}  {f:6.4f}  {n:7d}")
        logger.info("%s, by class:\n%s", self.name, "\n".join(lines))
        return super()._after_inference()


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
        scores, labels = _scores_and_labels(values, self.names, (2,))
        labels = _classes(labels, self.names[1], scores.shape[1])
        # In float64, because unsigned types cannot be negated.
        scores = _without_nan(scores, self.names[0]).astype(np.float64)
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
    the area is `nan`. The report shows how often each class occurs.
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
        scores, labels = values
        scores = scores[:, 1] if np.shape(scores)[1:] == (2,) else scores
        scores, labels = _scores_and_labels([scores, labels], self.names, (1,))
        self._scores.append(_without_nan(scores, self.names[0]).astype(np.float64))
        self._labels.append(_classes(labels, self.names[1], 2) == 1)

    def _all(self) -> tuple[np.ndarray, np.ndarray]:
        """The scores of the whole set, and whether they belong to class 1."""
        positive = np.concatenate(self._labels)
        count = int(positive.sum())
        self.trainer.monitors.put_classes(self.name, {0: len(positive) - count, 1: count})
        return np.concatenate(self._scores), positive

    def _after_inference(self) -> dict[str, float]:
        false_rate, true_rate = roc_curve(*self._all())
        area = float(np.trapezoid(true_rate, false_rate))
        if self.picture and np.isfinite(area):
            image = curve_picture(
                false_rate, true_rate, f"AUC {area:.4f}", "false positives", "true positives"
            )
            self.trainer.monitors.put_image(f"{self.name}_roc", image)
        return {f"{self.name}_auc": area}


class PrecisionRecallCurve(RocCurve):
    """The average precision of a binary score, and the curve of precision over recall.

    Logged as `<name>_average_precision`, exact, with the curve as a picture. It suits a rare class:
    the area under the ROC curve can be large although nearly all samples that score high are of the
    other class. The arguments are those of `RocCurve`. Without class 1, the average is `nan`.

    >>> curve = PrecisionRecallCurve("prob", "label", picture=False)
    """

    def _after_inference(self) -> dict[str, float]:
        recall, precision = precision_recall_curve(*self._all())
        average = average_precision(recall, precision)
        if self.picture and np.isfinite(average):
            title = f"average precision {average:.4f}"
            image = curve_picture(recall, precision, title, "recall", "precision")
            self.trainer.monitors.put_image(f"{self.name}_precision_recall", image)
        return {f"{self.name}_average_precision": average}


def _scores_and_labels(
    values: Sequence[Any], names: Sequence[str], dimensions: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Both as arrays; raises unless there is one score, or row of scores, for each label."""
    scores, labels = map(np.asarray, values)
    if scores.ndim not in dimensions or labels.shape != scores.shape[:1]:
        expected = " or ".join({1: "score", 2: "row of scores"}[n] for n in dimensions)
        raise ValueError(
            f"expected one {expected} and one label per sample, received {names[0]!r} of shape "
            f"{scores.shape} and {names[1]!r} of shape {labels.shape}"
        )
    return scores, labels


def _classes(array: Any, name: str, count: int | None = None) -> np.ndarray:
    """The classes in `array` as integers; raises unless they are >= 0, and < `count` if given."""
    array = np.asarray(array)
    classes = array.astype(np.int64)
    wrong = (classes != array) | (classes < 0) | (classes >= (math.inf if count is None else count))
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
    false, true = _counts_above(scores, positive)
    with np.errstate(invalid="ignore"):
        return false / np.float64(false[-1]), true / np.float64(true[-1])


def precision_recall_curve(
    scores: np.ndarray, positive: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision, from the highest threshold to the lowest; both begin at (0, 1)."""
    false, true = _counts_above(scores, positive)
    with np.errstate(invalid="ignore"):
        recall = true / np.float64(true[-1])
    return recall, np.append(1.0, true[1:] / (true + false)[1:])


def average_precision(recall: np.ndarray, precision: np.ndarray) -> float:
    """The mean of the precisions at all thresholds, each weighted by the recall that it adds."""
    return float(np.sum(np.diff(recall) * precision[1:]))


def _counts_above(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many of class 0 and of class 1 have the highest 0, 1, 2, ... distinct scores."""
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    ends = np.flatnonzero(np.append(np.diff(scores) != 0, True))  # equal scores are one point
    true, false = np.cumsum(positive)[ends], np.cumsum(~positive)[ends]
    return np.append(0, false), np.append(0, true)

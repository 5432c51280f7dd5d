"""More about a classifier over a validation set: which classes, how sure, how far off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.callbacks.drawing import confusion_picture, curve_picture
from towerpack.callbacks.inference import Inferencer
from towerpack.core import logger


class ConfusionMatrix(Inferencer):
    """Counts which class was taken for which, as a picture and a report.

    `scores` is [N, classes] (the largest wins) or a vector of classes; `labels` a vector of
    classes. A label without a column of scores, or a score that is NaN, is an error. `matrix[i, j]`
    counts samples of class i taken for j. Scalars: `<name>_accuracy` and `<name>_macro_f1`, the
    mean over the classes that occur. The picture needs matplotlib; without `picture=True` nothing
    is drawn.
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

    def _get_fetches(self) -> list[str]:
        return self.names

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

    It is a `ConfusionMatrix` that also logs, and puts the scalars `<name>_recall/<class>` when
    `per_class=True`.
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


class TopK(Inferencer):
    """The share of samples whose class is not among the k highest scores, as `<name>_top<k>_error`.

    Of equal scores, those of lower classes count as higher. A label without a column of scores is
    an error, and so is a score that is NaN.
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
            raise ValueError(f"expected numbers of at least 1 as k, received {k}")

    def _get_fetches(self) -> list[str]:
        return self.names

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
        scores = _without_nan(scores, self.names[0]).astype(np.float64)  # unsigned have no minus
        order = np.argsort(-scores, axis=1, kind="stable")
        rank = (order == labels[:, None]).argmax(axis=1)
        self._wrong += [int((rank >= k).sum()) for k in self.ks]
        self._total += len(labels)

    def _after_inference(self) -> dict[str, float]:
        return {
            f"{self.name}_top{k}_error": float(wrong / self._total) if self._total else math.nan
            for k, wrong in zip(self.ks, self._wrong, strict=True)
        }


class RocCurve(Inferencer):
    """The area under the ROC curve of a binary score, as `<name>_auc`, with the curve as a picture.

    Exact: all scores are kept (8 bytes each), and equal scores count half. `scores` is a vector, or
    [N, 2], of which the second column counts; `labels` a vector of 0 and 1. With one class only the
    area is `nan`.
    """

    def __init__(
        self,
        scores: str = "prob",
        labels: str = "label",
        name: str = "validation",
        picture: bool = True,
    ):
        self.names, self.name, self.picture = [scores, labels], name, picture

    def _get_fetches(self) -> list[str]:
        return self.names

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
    """The classes in `array` as integers: 0 and above, and below `count` if that is known."""
    array = np.asarray(array)
    classes = array.astype(np.int64)
    wrong = (classes != array) | (classes < 0)
    if count is not None:
        wrong |= classes >= count
    if wrong.any():
        known = "integers from 0 on" if count is None else f"integers from 0 to {count - 1}"
        raise ValueError(
            f"expected classes in {name!r}, {known}, received {np.unique(array[wrong])[:5]} for "
            f"{int(wrong.sum())} of {len(array)} samples; remove such samples from the set"
        )
    return classes


def _without_nan(scores: np.ndarray, name: str) -> np.ndarray:
    """The scores; NaN, which has no place in an order, is an error."""
    if np.isnan(scores).any():
        raise ValueError(f"expected numbers in {name!r}, received NaN from the model")
    return scores


def class_scores(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F1 of each class; 0 where there is nothing to divide by."""
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

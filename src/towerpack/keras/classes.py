"""The `class_weight` of `fit`, and how often the classes of its data occur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.classes import (
    BALANCED,
    RESAMPLE,
    ClassWeight,
    as_classes,
    checked_class_weight,
    class_counts,
    weights_of_counts,
)
from towerpack.keras.data import by_model, in_order

keras = tf.keras
Counts = dict[Any, int]


def weights_and_counts(
    model: Any, x: Any, y: Any, class_weight: ClassWeight
) -> tuple[Mapping[Any, float] | None, Counts | None]:
    """The weights as `model.fit` takes them, and how many samples each class has, if it is known.

    'resample' has no weights. The labels of a flow are read once, for 'balanced'.
    """
    checked_class_weight(class_weight)
    batches = isinstance(x, DataFlow | tf.data.Dataset | keras.utils.PyDataset | Iterator)
    if not isinstance(class_weight, str):
        return class_weight, None if batches else counted(model, y, bool(class_weight))
    if (y is None and not batches) or keras.tree.is_nested(y):
        raise ValueError("class_weight is for a model with one output; use sample_weight")
    counts = class_counts(_labels(model, x, class_weight) if batches else y)
    return weights_of_counts(counts, BALANCED) if class_weight == BALANCED else None, counts


def _labels(model: Any, x: Any, class_weight: str) -> np.ndarray:
    if not isinstance(x, DataFlow):
        raise ValueError(
            f"class_weight={class_weight!r} is for arrays and flows, whose labels can be counted "
            f"in advance, received a {type(x).__name__}; pass the weights, such as "
            "class_weight=towerpack.class_weights(labels, 'balanced')"
        )
    if class_weight == RESAMPLE or not x.random_access:
        raise ValueError(
            f"class_weight={class_weight!r} needs samples with random access, received batches of "
            f"{x.label()}; put ClassWeightData(source, {class_weight!r}) before BatchData"
        )
    batches = track(in_order(x), len(x), f"reading the labels of {x.label()}")
    return np.concatenate([as_classes(by_model(batch, model)[1]) for batch in batches])


def counted(model: Any, y: Any, are_classes: bool = False) -> Counts | None:
    """The class counts of these targets; None unless it is certain that they are classes.

    It is certain by a `class_weight`, or by the model's loss.
    """
    loss = model.loss
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    name = name.replace("_", "").lower()
    if y is None or keras.tree.is_nested(y) or not (are_classes or "crossentropy" in name):
        return None
    one_hot = name.startswith("categorical")
    if not are_classes and (np.ndim(y) > 1 and np.shape(y)[-1] > 1) != one_hot:
        return None  # several labels of a sample, or pictures
    try:
        return class_counts(y)
    except (TypeError, ValueError):  # probabilities, for example
        return None

"""Class frequencies, and the weights that make up for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from towerpack.core.similar import nearest_first

BALANCED, RESAMPLE = "balanced", "resample"
ClassWeight = str | Mapping[Any, float] | None
SHOWN = 8  # classes in a message or a line of the log
RARE = 0.1  # of an equal share: 5% of two classes. Plain training tends to ignore a class below it


def as_classes(labels: Any) -> np.ndarray:
    """The class of each sample as a vector of int64 or strings.

    `labels` are whole numbers (of any type), strings, a column of them, or one-hot rows, whose
    class is the column of the 1. Anything else is an error: NaN, fractions, several ones in a row.
    """
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind in "OT" and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    if array.dtype.kind in "US" and array.ndim == 1:
        return array
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        kind = f"an array of {array.dtype} of shape {array.shape}"
        raise TypeError(
            f"expected the class of each sample as a whole number, a string or a one-hot row, "
            f"received {kind}; pass a vector with a class for each sample"
        )
    if array.ndim == 2:
        if not (((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all()):
            raise ValueError(
                f"expected one-hot rows (one 1, otherwise 0), received labels of shape "
                f"{array.shape} that are not; samples with several labels have no class weight: "
                "pass sample weights instead"
            )
        return array.argmax(axis=1)
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(array.astype(np.int64) != array)  # NaN is among these
    if len(wrong):
        raise ValueError(
            f"expected a class for each sample, received the label {array[wrong[0]]} for sample "
            f"{wrong[0]} and {len(wrong) - 1} more that are not whole numbers; fill in or remove "
            "such samples, or number the classes"
        )
    return array.astype(np.int64)


def class_counts(labels: Any) -> dict[Any, int]:
    """How many samples each class has, in the order of the classes.

    >>> class_counts(["no", "yes", "no"])
    {'no': 2, 'yes': 1}
    """
    classes, counts = np.unique(as_classes(labels), return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def class_weights(
    labels: Any, class_weight: ClassWeight, classes: Iterable[Any] | None = None
) -> dict[Any, float]:
    """The weight of each class in `labels`.

    'balanced' is scikit-learn's formula: the number of samples, divided by the number of classes
    and that of the samples in the class. So the weights of all samples have the mean 1. None is 1
    for each class. A dict must have a weight for each class in `labels`, and no class that is
    neither there nor in `classes`, which are all that may occur: a part of the data may lack some.

    >>> class_weights([0, 0, 0, 1], "balanced")
    {0: 0.6666666666666666, 1: 2.0}
    >>> class_weights([0, 0, 0, 1], {0: 1, 1: 5})
    {0: 1.0, 1: 5.0}
    """
    return weights_of_counts(class_counts(labels), class_weight, classes)


def sample_weights(
    labels: Any, class_weight: ClassWeight, classes: Iterable[Any] | None = None
) -> np.ndarray:
    """The weight of each sample, which is that of its class in `class_weights`.

    >>> sample_weights(["a", "a", "a", "b"], {"a": 1, "b": 5})
    array([1., 1., 1., 5.])
    """
    found, number, counts = np.unique(as_classes(labels), return_inverse=True, return_counts=True)
    sizes = dict(zip(found.tolist(), counts.tolist(), strict=True))
    weights = weights_of_counts(sizes, class_weight, classes)
    return np.array([weights[each] for each in sizes], np.float64)[number]


def weights_of_counts(
    counts: Mapping[Any, int], class_weight: ClassWeight, classes: Iterable[Any] | None = None
) -> dict[Any, float]:
    """`class_weights`, from the number of samples in each class."""
    checked_class_weight(class_weight)
    if class_weight is None:
        return dict.fromkeys(counts, 1.0)
    if class_weight == BALANCED:
        total = sum(counts.values())
        return {each: total / (len(counts) * count) for each, count in counts.items()}
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            f"class_weight={RESAMPLE!r} draws samples and has no weights: use BalancedData"
        )
    known = {*counts, *([] if classes is None else classes)}
    unknown = [each for each in class_weight if each not in known]
    missing = [each for each in counts if each not in class_weight]
    if unknown or missing:
        what = f"a weight for {unknown[0]!r}" if unknown else f"no weight for {missing[0]!r}"
        raise ValueError(
            f"expected class_weight with a weight for each of the classes {shown(counts)}, "
            f"received {what}; pass 1 for a class that should keep its weight"
        )
    return {each: float(class_weight[each]) for each in counts}


def checked_class_weight(class_weight: Any) -> ClassWeight:
    """The argument, if it is one of the values that `class_weight` has everywhere."""
    if isinstance(class_weight, Mapping):
        for each, weight in class_weight.items():
            if not (np.isscalar(weight) and 0 <= weight < np.inf):  # type: ignore[operator]
                raise ValueError(
                    f"expected weights of 0 or more in class_weight, received {weight!r} for the "
                    f"class {each!r}"
                )
    elif class_weight is not None and str(class_weight) not in (BALANCED, RESAMPLE):
        near = (
            f": did you mean {nearest_first(class_weight, [BALANCED, RESAMPLE]).split(',')[0]}?"
            if isinstance(class_weight, str)
            else ""
        )
        raise ValueError(
            f"expected class_weight to be None, {BALANCED!r}, {RESAMPLE!r} or a dict "
            f"{{class: weight}}, received {class_weight!r}{near}"
        )
    return class_weight


def shown(counts: Mapping[Any, int]) -> str:
    """The classes with their shares, for messages: the largest ones if there are many.

    >>> shown({0: 9900, 1: 100})
    '0: 9,900 (99.0%), 1: 100 (1.0%)'
    """
    total = sum(counts.values())
    kept = dict(sorted(counts.items(), key=lambda pair: -pair[1])[:SHOWN])
    parts = [
        f"{each}: {count:,} ({count / total:.1%})" for each, count in counts.items() if each in kept
    ]
    more = len(counts) - len(kept)
    return ", ".join(parts) + (f" and {more} more" if more else "")


def rare_class(counts: Mapping[Any, int]) -> str:
    """A hint if the smallest class has far less than an equal share of the samples, else ''.

    >>> rare_class({0: 9900, 1: 100}).split(";")[0]
    'class 1 has 100 of 10,000 samples'
    >>> rare_class({0: 9000, 1: 1000})
    ''
    """
    total, rarest = sum(counts.values()), min(counts, key=lambda each: counts[each])
    if counts[rarest] * len(counts) >= RARE * total:
        return ""
    return (
        f"class {rarest} has {counts[rarest]:,} of {total:,} samples; if the model ignores it, "
        "move the threshold of the decision, or use class_weight='balanced' or 'resample'"
    )

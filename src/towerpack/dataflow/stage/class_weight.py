"""The weight of its class for every datapoint, or every class equally often."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.classes import (
    RESAMPLE,
    ClassWeight,
    as_classes,
    checked_class_weight,
    class_counts,
    shown,
    weights_of_counts,
)
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.functions import component
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.source.iterable import as_flow
from towerpack.dataflow.stage.balance import BalancedData, read_labels
from towerpack.dataflow.stage.base import ApplyIterator, Stage
from towerpack.dataflow.statistics import walk

KEY = "sample_weight"


class ClassWeightData(Stage):
    """Weighs every datapoint by its class, or draws every class equally often.

    `class_weight` has the values that it has everywhere in towerpack:

    - 'balanced' appends to every datapoint the weight of its class, so that all classes together
      weigh the same: see `class_weights`. A dict of weights for the classes does the same. The new
      last component is a float32; datapoints that are dicts get the key 'sample_weight'.
    - 'resample' appends nothing. The datapoints are those of `BalancedData`: in an epoch, each at
      least once, and those of a small class again and again.
    - None only counts the classes.

    `label` is the component with the class (its position or key), or a function of a datapoint: a
    whole number, a string or a one-hot vector. All labels are counted here, and a trainer logs and
    records the frequencies (`class_counts`). Of `DataFromArrays` this is immediate. Any other input
    with random access is read once, in epoch 0. Pass `labels`, those of all datapoints, if this is
    slow, or if the input can only be iterated.

    Random access, order, position and whole batches are kept. Put this stage after the source and
    before batches. 'resample' needs random access and an order that does not change
    (`shuffle=False`), because it draws a new order itself.

    >>> from towerpack.dataflow import DataFromArrays
    >>> source = DataFromArrays(np.arange(4), np.array([0, 0, 0, 1]))
    >>> ClassWeightData(source, {0: 1, 1: 3})[3]
    [np.int64(3), np.int64(1), np.float32(3.0)]
    >>> sorted(int(label) for _, label in ClassWeightData(source, "resample"))
    [0, 0, 0, 1, 1, 1]
    """

    keeps_rows = True
    transparent = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        class_weight: ClassWeight = "balanced",
        label: int | str | Callable[[Any], Any] = -1,
        *,
        labels: Any = None,
        seed: int = 0,
    ):
        ds = as_flow(ds)
        self.class_weight = checked_class_weight(class_weight)
        self._find = label if callable(label) else lambda datapoint: component(datapoint, label)
        self._of_batches = not callable(label)
        classes = self._classes(ds, label, labels)
        self.class_counts = class_counts(classes)
        self.weights: dict[Any, np.float32] = {}
        if class_weight == RESAMPLE:
            ds = BalancedData(ds, classes.tolist(), seed=seed)
        elif class_weight is not None:
            found = weights_of_counts(self.class_counts, class_weight)
            self.weights = {each: np.float32(weight) for each, weight in found.items()}
        super().__init__(ds)

    def _classes(self, ds: DataFlow, label: Any, labels: Any) -> np.ndarray:
        batching = ds.batching()
        if batching is not None:
            raise ValueError(
                f"expected single datapoints, received batches of {batching.size} from "
                f"{ds.label()}; put ClassWeightData before the stage that makes batches"
            )
        given = labels is not None
        if not given and not ds.random_access:
            raise TypeError(
                f"{ds.label()} can only be iterated, so its labels are not known: pass labels=, "
                "the label of each datapoint"
            )
        if labels is None:
            labels = read_labels(ds, label, whole=self.class_weight == RESAMPLE)
        classes = as_classes(labels)
        if not len(classes):
            raise ValueError(f"expected datapoints to balance, but {ds.label()} has none")
        if given and ds.random_access and len(classes) != ds.num_indices():
            raise ValueError(
                f"expected {ds.num_indices()} labels, one for each datapoint, received "
                f"{len(classes)}"
            )
        return classes

    def label(self) -> str:
        weights = self.class_weight
        return f"{type(self).__name__}({'dict' if isinstance(weights, Mapping) else weights})"

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        if not self.weights:
            return rows
        return [None if row is None else self._with(row, self._weight(row)) for row in rows]

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        if not self.weights:
            return self.ds.read_batch(indices, epoch)
        if not self._of_batches:  # the function expects a single datapoint
            return super().gather(indices, epoch)
        batch = self.ds.read_batch(indices, epoch)
        found, number = np.unique(as_classes(self._find(batch)), return_inverse=True)
        weights = epoch.allocate((len(number),), np.dtype(np.float32))
        weights[:] = np.array([self._weight_of(each) for each in found.tolist()])[number]
        return self._with(batch, weights)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return ApplyIterator(self, epoch, key=None)

    def _weight(self, row: Any) -> np.float32:
        label = self._find(row)
        if isinstance(label, np.ndarray | list | tuple):  # one-hot, for example
            label = as_classes(np.asarray(label)[None]).item()
        return self._weight_of(label)

    def _weight_of(self, each: Any) -> np.float32:
        weight = self.weights.get(each)
        if weight is None:
            raise ValueError(
                f"expected a label among {shown(self.class_counts)}, which were counted when "
                f"{self.label()} was made, received {each!r}; if labels change, make a new flow"
            )
        return weight

    @staticmethod
    def _with(datapoint: Any, weight: Any) -> Any:
        if isinstance(datapoint, dict):
            if KEY in datapoint:
                raise ValueError(
                    f"the datapoints already have the key {KEY!r}; remove it, or multiply the "
                    "weights in a MapData"
                )
            return {**datapoint, KEY: weight}
        if isinstance(datapoint, list):
            return [*datapoint, weight]
        if isinstance(datapoint, tuple):
            return (*datapoint, weight)
        raise TypeError(
            f"expected datapoints that are lists, tuples or dicts, received a "
            f"{type(datapoint).__name__}"
        )


def known_classes(flow: DataFlow) -> tuple[dict[Any, int], ClassWeight] | None:
    """The class counts of a pipeline and their `class_weight`, if just one stage counted them."""
    found = [stage for stage in walk(flow) if isinstance(stage, ClassWeightData)]
    return (found[0].class_counts, found[0].class_weight) if len(found) == 1 else None

"""Datapoints drawn by class or by weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.core.progress import Progress
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.functions import component
from towerpack.dataflow.source.stored import DataFromArrays
from towerpack.dataflow.stage.base import RandomOrderStage, require_fixed_order

MODES = ("over", "under")
LABEL_CHUNK = 1024  # datapoints read at a time while labels are looked up


class BalancedData(RandomOrderStage):
    """Every class equally often: small ones repeated ('over') or large ones cut ('under').

    Oversampling brings every class to the size of the largest: each datapoint comes at least once
    per epoch, and those of one class equally often, give or take one. Undersampling takes from each
    class the number of datapoints of the smallest, each at most once, and others in each epoch.
    Choice and order are fixed by (seed, epoch).

    `label` is the component with the label (its position or key), a function of a datapoint, or a
    sequence with the label of each. With one of the former two, all datapoints are read once here:
    pass the labels if that is slow. The input needs random access, which is kept, and an order that
    does not change (`shuffle=False`). Put random augmentation after this stage: below it, repeated
    datapoints are augmented alike.

    >>> flow = BalancedData([[0, "a"], [1, "a"], [2, "b"]], label=1)
    >>> sorted(label for _, label in flow)
    ['a', 'a', 'b', 'b']
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        label: int | str | Callable[[Any], Any] | Sequence[Any] | np.ndarray,
        mode: str = "over",
        *,
        seed: int = 0,
    ):
        super().__init__(ds, seed)
        if mode not in MODES:
            raise ValueError(f"expected a mode of {' or '.join(MODES)}, received {mode!r}")
        require_fixed_order(self, self.ds, "the labels")
        self.mode = mode
        groups: dict[Any, list[int]] = {}
        for index, value in enumerate(_labels(self.ds, label)):
            groups.setdefault(value, []).append(index)
        if not groups:
            raise ValueError(f"expected datapoints to balance, but {self.ds.label()} has none")
        self.classes = {value: np.array(members) for value, members in groups.items()}
        sizes = [len(members) for members in self.classes.values()]
        self.class_size = max(sizes) if mode == "over" else min(sizes)

    def num_indices(self) -> int:
        return self.class_size * len(self.classes)

    def draw_order(self, epoch: Epoch) -> np.ndarray:
        rng = self.stream(epoch, "balance").generator(epoch.number, 0)
        chosen = []
        for members in self.classes.values():
            whole, rest = divmod(self.class_size, len(members))
            chosen += [members] * whole + [rng.permutation(members)[:rest]]
        return rng.permutation(np.concatenate(chosen))


def _labels(ds: DataFlow, label: Any) -> list[Any]:
    if callable(label) or isinstance(label, int | str):
        return [_hashable(value) for value in read_labels(ds, label, whole=True)]
    labels = [_hashable(value) for value in label]
    if len(labels) != ds.num_indices():
        raise ValueError(
            f"expected {ds.num_indices()} labels, one for each datapoint, received {len(labels)}"
        )
    return labels


def read_labels(
    ds: DataFlow, label: int | str | Callable[[Any], Any], whole: bool = False
) -> Sequence[Any] | np.ndarray:
    """The label of each datapoint: a column of arrays; otherwise all are read, in epoch 0.

    Those of arrays are in the order of the storage. Dropped datapoints are left out, or are an
    error if the `whole` flow must have labels.
    """
    if isinstance(ds, DataFromArrays) and not callable(label):
        return np.asarray(component(ds.columns(), label))
    labels = []
    size = ds.num_indices()
    with Progress(size, f"reading the labels of {ds.label()}") as bar:
        for start in range(0, size, LABEL_CHUNK):
            indices = range(start, min(start + LABEL_CHUNK, size))
            for index, datapoint in zip(indices, ds.read(indices, Epoch()), strict=True):
                if datapoint is not None:
                    labels.append(
                        label(datapoint) if callable(label) else component(datapoint, label)
                    )
                elif whole:
                    raise ValueError(
                        f"BalancedData cannot know the label of datapoint {index}, which "
                        f"{ds.label()} drops; balance first, then drop"
                    )
            bar.update(len(indices))
    return labels


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"expected a label that is a number, a string or a tuple, received {value!r}; pass a "
            "function that makes one: label=lambda datapoint: ..."
        ) from None
    return value


class WeightedChooseData(RandomOrderStage):
    """Draws `size` datapoints per epoch, each with a probability in proportion to its weight.

    Draws are with replacement: a datapoint may come several times in an epoch, another one not at
    all. They are fixed by (seed, epoch). The input needs random access, which is kept, and an order
    that does not change (`shuffle=False`). `size` is the input's length unless given. To balance
    classes exactly, use `BalancedData`. Put random augmentation after this stage: below it,
    repeated datapoints are augmented alike.

    >>> set(WeightedChooseData(["a", "b", "c"], weights=[0, 1, 1]))  <= {"b", "c"}
    True
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        weights: Sequence[float] | np.ndarray,
        size: int | None = None,
        *,
        seed: int = 0,
    ):
        super().__init__(ds, seed)
        require_fixed_order(self, self.ds, "the weights")
        self.weights = np.asarray(weights, np.float64)
        if self.weights.shape != (self.ds.num_indices(),):
            raise ValueError(
                f"expected {self.ds.num_indices()} weights, one for each datapoint, received an "
                f"array of shape {self.weights.shape}"
            )
        total = self.weights.sum()
        if not np.isfinite(total) or total <= 0 or (self.weights < 0).any():
            raise ValueError("expected weights of 0 or more, finite and not all 0")
        self._size = self.ds.num_indices() if size is None else int(size)

    def num_indices(self) -> int:
        return self._size

    def draw_order(self, epoch: Epoch) -> np.ndarray:
        rng = self.stream(epoch, "weighted").generator(epoch.number, 0)
        return rng.choice(len(self.weights), self._size, p=self.weights / self.weights.sum())

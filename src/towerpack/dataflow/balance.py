"""Unbalanced classes made equally frequent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Pass, RandomStage
from towerpack.dataflow.epoch_cache import EpochCache
from towerpack.dataflow.map_component import component
from towerpack.dataflow.reindex import Reindexed, require_fixed_order

MODES = ("over", "under")
LABEL_CHUNK = 1024  # datapoints read at a time while labels are looked up


class BalancedData(RandomStage, Reindexed):
    """Every class equally often: small ones repeated ('over') or large ones cut ('under').

    Oversampling brings every class to the size of the largest: each datapoint comes at least once
    per pass, and those of one class equally often, give or take one. Undersampling takes from each
    class as many as the smallest has, each at most once, others in each epoch. Choice and order are
    fixed by (seed, epoch).

    `label` is the component with the label (its position or key), a function of a datapoint, or a
    sequence with the label of each. With one of the former two, all datapoints are read once here:
    give the labels if that is slow. The input needs random access, which is kept, and an order of
    its own that does not change (`shuffle=False`). Put random augmentation after this stage: below
    it, repeated datapoints are augmented alike.

    >>> flow = BalancedData([[0, "a"], [1, "a"], [2, "b"]], label=1)
    >>> sorted(label for _, label in flow)
    ['a', 'a', 'b', 'b']
    """

    reorders = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        label: int | str | Callable[[Any], Any] | Sequence[Any] | np.ndarray,
        mode: str = "over",
        *,
        seed: int = 0,
    ):
        super().__init__(ds)
        if mode not in MODES:
            raise ValueError(f"expected a mode of {' or '.join(MODES)}, received {mode!r}")
        require_fixed_order(self, self.ds, "the labels")
        self.mode, self.seed = mode, seed
        groups: dict[Any, list[int]] = {}
        for index, value in enumerate(_labels(self.ds, label)):
            groups.setdefault(value, []).append(index)
        if not groups:
            raise ValueError(f"expected datapoints to balance, but {self.ds.label()} has none")
        self.classes = {value: np.array(members) for value, members in groups.items()}
        sizes = [len(members) for members in self.classes.values()]
        self.class_size = max(sizes) if mode == "over" else min(sizes)
        self._orders: EpochCache[np.ndarray] = EpochCache()

    def span(self) -> int:
        return self.class_size * len(self.classes)

    def sources(self, indices: Any, pass_: Pass) -> Any:
        def draw() -> np.ndarray:
            rng = self.stream(pass_, "balance").generator(pass_.epoch, 0)
            chosen = []
            for members in self.classes.values():
                whole, rest = divmod(self.class_size, len(members))
                chosen += [members] * whole + [rng.permutation(members)[:rest]]
            return rng.permutation(np.concatenate(chosen))

        return self._orders.get((pass_.epoch, pass_.branch, self.seed), draw)[indices]


def _labels(ds: DataFlow, label: Any) -> list[Any]:
    if callable(label):
        return [_hashable(label(datapoint)) for datapoint in _datapoints(ds)]
    if isinstance(label, int | str):
        return [_hashable(component(datapoint, label)) for datapoint in _datapoints(ds)]
    labels = [_hashable(value) for value in label]
    if len(labels) != ds.span():
        raise ValueError(
            f"expected {ds.span()} labels, one for each datapoint, received {len(labels)}"
        )
    return labels


def _datapoints(ds: DataFlow) -> Iterable[Any]:
    for start in range(0, ds.span(), LABEL_CHUNK):
        indices = range(start, min(start + LABEL_CHUNK, ds.span()))
        for index, datapoint in zip(indices, ds.get_rows(indices, Pass()), strict=True):
            if datapoint is None:
                raise ValueError(
                    f"BalancedData cannot know the label of datapoint {index}, which "
                    f"{ds.label()} drops; balance first, then drop"
                )
            yield datapoint


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

"""Whether small or large values of a scalar are good, by its name, and which scalars to show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

# Whole words of a name: `val_acc` has one, `accumulated` has none.
_LOWER = re.compile(
    r"(?:^|[^a-z])(?:error|err|loss|cost|perplexity|ppl|rmse|mse|mae|fid|wer|cer|nll|top\d+)"
    r"(?:$|[^a-z])"
)
_HIGHER = re.compile(
    r"(?:^|[^a-z])(?:accuracy|acc|auc|f1|score|psnr|ssim|iou|miou|map|ap|bleu|reward|return|"
    r"precision|recall)(?:$|[^a-z])"
)
_COST = re.compile(r"loss|cost|nll")  # a cost says less than the metric that users want
_HELD_OUT = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|test|eval|dev)(?:$|[^a-z])")


def direction(name: str) -> Literal["min", "max"] | None:
    """Whether small or large values are good; None if the name does not tell.

    >>> direction("val-error"), direction("validation/accuracy"), direction("learning_rate")
    ('min', 'max', None)
    """
    lowered = name.lower()
    if _LOWER.search(lowered):
        return "min"
    if _HIGHER.search(lowered):
        return "max"
    return None


def headline(names: Iterable[str], count: int = 3) -> list[str]:
    """The scalars to show first: those with a direction, of held-out data before the others.

    >>> headline(["cost", "lr", "train_error", "val_error"], 2)
    ['val_error', 'train_error']
    """
    ranked = sorted(
        (name for name in names if direction(name)),
        key=lambda name: (
            not _HELD_OUT.search(name.lower()),
            bool(_COST.search(name.lower())),
            len(name),
            name,
        ),
    )
    return ranked[:count]


def best(name: str, known: Mapping[str, Any]) -> list[Any] | None:
    """[value, step, epoch] of the best value, from the `scalars` of a run record."""
    way = direction(name)
    return known.get(way) if way else None

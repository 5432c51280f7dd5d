"""How often each class occurs in the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.core import logger
from towerpack.dataflow.classes import ClassWeight, class_counts, rare_class, shown


class ClassFrequencies(Callback):
    """Logs how often each class occurs in sets of data, and records it for `towerpack report`.

    `sets` are the names of the sets, each with its labels or its counts {class: samples}. A hint is
    logged if a class of the training set is rare, and `class_weight` is None.

    A trainer adds this callback itself if its flow has a `ClassWeightData`, and so does
    `towerpack.keras.fit` for arrays with classes.

    >>> frequencies = ClassFrequencies(training=[0] * 99 + [1], validation={0: 990, 1: 10})
    """

    def __init__(self, *, class_weight: ClassWeight = None, **sets: Any):
        self.class_weight = class_weight
        self.sets = {
            name: dict(labels) if isinstance(labels, Mapping) else class_counts(labels)
            for name, labels in sets.items()
        }

    def _before_train(self) -> None:
        for name, counts in self.sets.items():
            logger.info("classes of the %s data: %s", name, shown(counts))
            note = ""
            if name == "training" and self.class_weight is not None:
                note = f"class_weight={self.class_weight!r}"
            elif name == "training" and (note := rare_class(counts)):
                logger.warning("%s", note)
            self.trainer.monitors.put_classes(name, counts, note)

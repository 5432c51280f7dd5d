"""One pass over the data, as it is handed down a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from towerpack.dataflow.stacking import Allocate


@dataclass(frozen=True)
class Pass:
    """One pass over the data: which epoch, in which branch of the pipeline, and where arrays go.

    A stage with several inputs gives each its own `branch`, so that two shuffled sources joined
    into one flow are not shuffled alike. Stages with one input hand the pass on as it is: to wrap a
    flow in one more stage never changes the numbers drawn below it.
    """

    epoch: int = 0
    branch: tuple[int, ...] = ()
    allocate: Allocate = np.empty

    # Asked for every datapoint, so each is made once.
    _inputs: dict[int, Pass] = field(default_factory=dict, init=False, repr=False, compare=False)

    def input(self, which: int) -> Pass:
        made = self._inputs.get(which)
        if made is None:
            made = self._inputs[which] = replace(self, branch=(*self.branch, which))
        return made

    def at_epoch(self, epoch: int) -> Pass:
        return self if epoch == self.epoch else replace(self, epoch=epoch)

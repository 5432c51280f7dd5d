"""Running the tower over a validation set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.callbacks.inference import Inferencer
from towerpack.core.progress import Progress
from towerpack.dataflow.base import DataFlow, as_flow
from towerpack.input_source.signature import as_inputs
from towerpack.tower import TracedTower


class InferenceRunner(Callback):
    """Runs one pass of a flow through the tower under `is_training=False`, after every epoch.

    The variables are those in training. Every batch of the flow is used exactly once, also a
    smaller last one. The scalars of the inferencers go to the monitors.
    """

    def __init__(self, input: Any, infs: Inferencer | Sequence[Inferencer]):
        self.flow: DataFlow = as_flow(input)
        self.infs = [infs] if isinstance(infs, Inferencer) else list(infs)
        for inferencer in self.infs:
            if not isinstance(inferencer, Inferencer):
                raise TypeError(f"expected inferencers, received {inferencer!r}")

    def _setup_graph(self) -> None:
        tower = TracedTower(self.trainer.tower_func, self.trainer.store)
        self._fetches = [inferencer.get_fetches() for inferencer in self.infs]
        names = list(dict.fromkeys(name for names in self._fetches for name in names))
        self._signature = self.trainer.tower_func.signature
        self._names = names
        self._function = tower.function(None, names)

    def _trigger(self) -> None:
        for inferencer in self.infs:
            inferencer.before_inference()
        name = type(self.flow).__name__
        try:
            total: int | None = len(self.flow)
        except TypeError:
            total = None
        # Always the same epoch: a validation set is read in one order.
        with self.flow.iterate(0) as batches, Progress(total, "validation", "batch") as bar:
            for batch in batches:
                self._run(as_inputs(batch, self._signature, name))
                bar.update()
        for inferencer in self.infs:
            for key, value in inferencer.after_inference().items():
                self.trainer.monitors.put_scalar(key, value)

    def _run(self, inputs: list[Any]) -> None:
        outputs = [tensor.numpy() for tensor in self._function(*inputs)]
        values = dict(zip(self._names, outputs, strict=True))
        for inferencer, names in zip(self.infs, self._fetches, strict=True):
            inferencer.on_fetches([values[name] for name in names])

"""What to train, in one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from towerpack.callbacks import Callback, MergeAllSummaries, MovingAverageSummary, ProgressBar
from towerpack.checkpoint import ModelLoader
from towerpack.dataflow.base import DataFlow
from towerpack.input_source import InputSource, QueueInput
from towerpack.models import ModelDesc
from towerpack.monitor import JSONWriter, MonitorBase, ScalarPrinter, TFEventWriter


def DEFAULT_CALLBACKS() -> list[Callback]:
    """The callbacks that every run gets unless `extra_callbacks` says otherwise."""
    return [MovingAverageSummary(), ProgressBar(), MergeAllSummaries()]


def DEFAULT_MONITORS() -> list[MonitorBase]:
    """The monitors that every run gets unless `monitors` says otherwise."""
    return [TFEventWriter(), JSONWriter(), ScalarPrinter()]


@dataclass(kw_only=True)
class TrainConfig:
    """A model, its data, what happens along the way, and for how long.

    Give either a `dataflow` (it is prefetched by a `QueueInput`) or `data`, an input source.
    `steps_per_epoch` defaults to the length of the data. The callbacks of a run are `callbacks`
    followed by `extra_callbacks`, which default to `DEFAULT_CALLBACKS()`.
    """

    model: ModelDesc
    dataflow: DataFlow | None = None
    data: InputSource | DataFlow | None = None
    callbacks: Sequence[Callback] = ()
    extra_callbacks: Sequence[Callback] | None = None
    monitors: Sequence[MonitorBase] | None = None
    session_init: ModelLoader | Any = None
    starting_epoch: int = 1
    steps_per_epoch: int | None = None
    max_epoch: int = 99999

    def __post_init__(self) -> None:
        if (self.dataflow is None) == (self.data is None):
            raise ValueError("expected either dataflow= or data=, one of the two")
        if isinstance(self.data, DataFlow):
            self.dataflow, self.data = self.data, None
        if not isinstance(self.model, ModelDesc):
            raise TypeError(f"expected a ModelDesc as model, received {self.model!r}")
        if self.steps_per_epoch is not None and self.steps_per_epoch < 0:
            raise ValueError(f"expected steps_per_epoch >= 0, received {self.steps_per_epoch}")

    def input_source(self) -> InputSource:
        return self.data if isinstance(self.data, InputSource) else QueueInput(self.dataflow)

    def epoch_steps(self, source: InputSource) -> int:
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        size = source.size()
        if size is None:
            raise ValueError("the length of the data is not known: pass steps_per_epoch=")
        return size


def launch_train_with_config(config: TrainConfig, trainer: Any) -> None:
    """Trains the model of a config with a trainer, from setting up to the last epoch.

    The same as these calls, which a user may also make himself:

        trainer.setup_graph(signature, input_source, model.build_graph, model.get_optimizer)
        trainer.setup_callbacks(callbacks, monitors)
        trainer.initialize(session_init)
        trainer.main_loop(steps_per_epoch, starting_epoch, max_epoch)
        trainer.close()
    """
    source = config.input_source()
    extra = DEFAULT_CALLBACKS() if config.extra_callbacks is None else config.extra_callbacks
    monitors = DEFAULT_MONITORS() if config.monitors is None else config.monitors
    model = config.model
    with trainer:
        trainer.setup_graph(model.input_signature, source, model.build_graph, model.get_optimizer)
        trainer.train(
            [*config.callbacks, *extra],
            monitors,
            steps_per_epoch=config.epoch_steps(source),
            max_epoch=config.max_epoch,
            starting_epoch=config.starting_epoch,
            session_init=config.session_init,
        )

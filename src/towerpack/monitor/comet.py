"""Numbers and pictures to Comet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.monitor.base import MonitorBase, RunInfo


class CometMLMonitor(MonitorBase):
    """Sends scalars, pictures, text, hyperparameters and the graph to comet.ml.

    Takes an experiment that you made, or makes a `comet_ml.Experiment(**kwargs)` when the run
    begins; with `online=False` a `comet_ml.OfflineExperiment`, whose archive lies in the run's
    directory. An experiment made here is ended with the run. Needs the extra `trackers`.
    """

    def __init__(
        self,
        experiment: Any = None,
        tags: Sequence[str] = (),
        online: bool = True,
        **kwargs: Any,
    ):
        if experiment is not None and kwargs:
            raise ValueError(
                f"expected an experiment or arguments for one, received both: {kwargs}"
            )
        self.experiment, self.tags, self.online = experiment, list(tags), online
        self._kwargs = kwargs
        self._own = experiment is None

    def open(self, run: RunInfo) -> None:
        if self._own:
            comet = require("comet_ml", extra="trackers")
            if self.online:
                self.experiment = comet.Experiment(**self._kwargs)
            else:
                place = {"offline_directory": str(run.directory)} if run.directory else {}
                self.experiment = comet.OfflineExperiment(**(place | self._kwargs))
        if self.tags:
            self.experiment.add_tags(self.tags)
        if run.directory:
            self.experiment.log_other("logger_dir", str(run.directory))

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        self.experiment.log_metric(name, value, step=step, epoch=epoch)

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        for number, image in enumerate(images):
            label = name if len(images) == 1 else f"{name}/{number}"
            self.experiment.log_image(image, name=label, step=step)

    def process_histogram(self, name: str, values: np.ndarray, step: int, epoch: int) -> None:
        self.experiment.log_histogram_3d(values, name=name, step=step)

    def process_text(self, name: str, text: str, step: int, epoch: int) -> None:
        self.experiment.log_text(text, step=step, metadata={"name": name})

    def process_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self.experiment.log_parameters(dict(values))

    def process_graph(self, graph: Callable[[], bytes]) -> None:
        self.experiment.log_asset_data(graph(), name="graph.pb")

    def close(self) -> None:
        if self._own and self.experiment is not None:
            self.experiment.end()
            self.experiment = None

"""Numbers and pictures to MLflow."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.monitor.base import MonitorBase, RunInfo
from towerpack.monitor.png import encode_png

BATCH = 500  # metrics in one request; MLflow's limit is 1000
LONGEST_PARAMETER = 6000  # characters; MLflow's limit
_NOT_ALLOWED = re.compile(r"[^\w\-. /]")  # in MLflow's names


class MLflowMonitor(MonitorBase):
    """Sends scalars, pictures, text and hyperparameters to MLflow.

    A run is made in `experiment` when training begins, or `run_id` is gone on with. `tracking_uri`
    defaults to MLflow's own setting. The run ends with the training: FINISHED, KILLED or FAILED.
    Metrics go out in batches, at the latest after every epoch. Characters that MLflow does not
    allow in names become `_`. Needs the extra `trackers`.
    """

    def __init__(
        self,
        experiment: str = "towerpack",
        run_name: str | None = None,
        run_id: str | None = None,
        tracking_uri: str | None = None,
    ):
        self.experiment, self.run_name, self.run_id = experiment, run_name, run_id
        self.tracking_uri = tracking_uri
        self._metrics: list[Any] = []
        self._status = "FINISHED"

    def open(self, run: RunInfo) -> None:
        self._mlflow = require("mlflow", extra="trackers")
        self._client = self._mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        if self.run_id is None:
            found = self._client.get_experiment_by_name(self.experiment)
            number = (
                found.experiment_id if found else self._client.create_experiment(self.experiment)
            )
            made = self._client.create_run(number, run_name=self.run_name)
            self.run_id = made.info.run_id
        if run.configuration:
            self._client.log_dict(self.run_id, dict(run.configuration), "configuration.json")

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        now = int(time.time() * 1000)
        self._metrics.append(self._mlflow.entities.Metric(_allowed(name), value, now, step))
        if len(self._metrics) >= BATCH:
            self._send()

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for number, image in enumerate(images):
                path = Path(directory, f"{step:09d}-{number}.png")
                path.write_bytes(encode_png(image))
            self._client.log_artifacts(self.run_id, directory, f"images/{_allowed(name)}")

    def process_text(self, name: str, text: str, step: int, epoch: int) -> None:
        self._client.log_text(self.run_id, text, f"text/{_allowed(name)}/{step:09d}.md")

    def process_hyperparameters(self, values: Mapping[str, Any]) -> None:
        parameter = self._mlflow.entities.Param
        pairs = [parameter(_allowed(k), str(v)[:LONGEST_PARAMETER]) for k, v in values.items()]
        self._client.log_batch(self.run_id, params=pairs)

    def flush(self, step: int, epoch: int) -> None:
        self._send()

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._status = "KILLED"
        elif error is not None:
            self._status = "FAILED"

    def close(self) -> None:
        if self.run_id is not None:
            self._send()
            self._client.set_terminated(self.run_id, self._status)

    def _send(self) -> None:
        metrics, self._metrics = self._metrics, []
        if metrics:
            self._client.log_batch(self.run_id, metrics=metrics)


def _allowed(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name)

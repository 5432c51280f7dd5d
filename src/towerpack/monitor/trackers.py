"""Monitors that send values to Comet, MLflow, Weights & Biases, or a command of the user."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.monitor.base import MonitorBase, RunInfo
from towerpack.monitor.files import encode_png
from towerpack.monitor.run_record import plain


class CometMLMonitor(MonitorBase):
    """Sends scalars, pictures, text, hyperparameters and the graph to comet.ml.

    It uses the given experiment, or creates a `comet_ml.Experiment(**kwargs)` when the run begins.
    With `online=False`, it creates a `comet_ml.OfflineExperiment`, whose archive is in the run's
    directory. An experiment that it created ends with the run. Needs the extra `trackers`.
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


BATCH = 500  # metrics in one request; MLflow's limit is 1000
LONGEST_PARAMETER = 6000  # characters; MLflow's limit
_NOT_ALLOWED = re.compile(r"[^\w\-. /]")  # in MLflow's names


class MLflowMonitor(MonitorBase):
    """Sends scalars, pictures, text and hyperparameters to MLflow.

    It creates a run in `experiment` when training begins, or continues the run `run_id`.
    `tracking_uri` defaults to MLflow's own setting. The run ends with the training, as FINISHED,
    KILLED or FAILED. Metrics are sent in batches, at the latest after every epoch. Characters that
    MLflow does not allow in names become `_`. Needs the extra `trackers`.
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


class WandbMonitor(MonitorBase):
    """Sends scalars, pictures, histograms, text and hyperparameters to Weights & Biases.

    It uses the given run, or creates one in the run's directory with `wandb.init(**kwargs)` when
    training begins. `mode="offline"` needs no network. A run that it created ends with the
    training, and is marked as failed after an exception. Values of one step are sent together.
    Needs the extra `trackers`.
    """

    def __init__(self, run: Any = None, **kwargs: Any):
        if run is not None and kwargs:
            raise ValueError(f"expected a run or arguments for wandb.init, received both: {kwargs}")
        self.run = run
        self._kwargs = kwargs
        self._own = run is None
        self._record: dict[str, Any] = {}
        self._step = 0
        self._exit_code = 0

    def open(self, run: RunInfo) -> None:
        self._wandb = require("wandb", extra="trackers")
        if self._own:
            place = {"dir": str(run.directory)} if run.directory else {}
            self.run = self._wandb.init(**(place | self._kwargs))
        if run.configuration:
            self.run.config.update(plain(run.configuration), allow_val_change=True)

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        self._put(name, value, step)

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        self._put(name, [self._wandb.Image(image.squeeze()) for image in images], step)

    def process_histogram(self, name: str, values: np.ndarray, step: int, epoch: int) -> None:
        finite = values[np.isfinite(values)]
        if finite.size:
            self._put(name, self._wandb.Histogram(finite), step)

    def process_text(self, name: str, text: str, step: int, epoch: int) -> None:
        self._put(name, text, step)

    def process_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self.run.config.update(dict(values), allow_val_change=True)

    def flush(self, step: int, epoch: int) -> None:
        self._send()

    def end(self, error: BaseException | None) -> None:
        self._exit_code = 0 if error is None else 1

    def close(self) -> None:
        if self.run is None:
            return
        self._send()
        if self._own:
            self.run.finish(exit_code=self._exit_code)
            self.run = None

    def _put(self, name: str, value: Any, step: int) -> None:
        if step != self._step:
            self._send()
        self._step = step
        self._record[name] = value

    def _send(self) -> None:
        if self._record:
            self.run.log(self._record, step=self._step)
        self._record = {}


COMMAND_SECONDS = 10.0  # training waits for the command, so it must not take long


class SendMonitorData(MonitorBase):
    """Runs a shell command with the latest values of some scalars, after epochs that log them all.

    `command` is a format string with the names as keys, for example
    `SendMonitorData("notify-send 'error {validation_error:.3f}'", ["validation_error"])`. Only
    numbers are filled in. If the command fails or takes more than ten seconds, this is logged, and
    training continues.
    """

    def __init__(self, command: str, names: Sequence[str]):
        self.command, self.names = command, list(names)
        if not self.names:
            raise ValueError("expected the names of the scalars to send, received none")
        self._values: dict[str, float] = {}
        try:
            command.format(**dict.fromkeys(self.names, 0.0))
        except (KeyError, IndexError) as error:
            raise ValueError(
                f"expected only keys of {self.names} in the command, received {command!r}"
            ) from error

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        if name in self.names:
            self._values[name] = value

    def flush(self, step: int, epoch: int) -> None:
        if len(self._values) < len(set(self.names)):
            return
        command = self.command.format(**self._values)
        self._values = {}
        try:
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, timeout=COMMAND_SECONDS
            )
        except subprocess.TimeoutExpired:
            logger.error(
                "the command %r took longer than %g seconds and was stopped",
                command,
                COMMAND_SECONDS,
            )
            return
        if done.returncode:
            logger.error(
                "the command %r failed with code %d: %s",
                command,
                done.returncode,
                (done.stdout + done.stderr)[-500:],
            )

"""Programs that `test_parameter_server.py` starts; each writes `result.json`: `NAME DIRECTORY`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import towerpack
from towerpack import logger
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import (
    Callback,
    InferenceRunner,
    ModelSaver,
    ProcessTensors,
    ScalarStats,
    StopTraining,
)
from towerpack.core.cluster import this_cluster
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import PerWorkerInput, QueueInput
from towerpack.models import FullyConnected, ModelDesc
from towerpack.train import (
    DistributedTrainerParameterServer,
    DistributedTrainerReplicated,
    SimpleTrainer,
    TrainConfig,
    launch_train_with_config,
)

WORKERS, BATCH, STEPS, SAMPLES = 2, 32, 100, 512
SERVER, LOST = 1, 3  # the ranks that are killed: a parameter server, and a worker
EPOCHS_AFTER = 2  # the restart
RESULT, COUNTS = "result.json", "counts.jsonl"


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 4))
    y = x @ [1.0, -2.0, 3.0, 0.5] + 0.3 + 0.1 * rng.normal(size=SAMPLES)
    return x.astype(np.float32), y.astype(np.float32)


def batches(worker: Any, workers: int) -> Any:
    data = tf.data.Dataset.from_tensor_slices(arrays()).shard(workers, worker).shuffle(SAMPLES)
    return data.map(lambda x, y: (x, y, tf.cast(worker, tf.int32))).batch(BATCH)


def flow() -> Any:
    return BatchData(DataFromArrays(*arrays(), np.zeros(SAMPLES, np.int32)), 64)


class Regression(ModelDesc):
    """Least squares; the variable `steps_of` counts the steps of each worker."""

    def inputs(self) -> list[Any]:
        return [
            tf.TensorSpec([None, 4], tf.float32, "x"),
            tf.TensorSpec([None], tf.float32, "y"),
            tf.TensorSpec([None], tf.int32, "worker"),
        ]

    def build_graph(self, x: Any, y: Any, worker: Any) -> Any:
        guess = tf.squeeze(FullyConnected("fc", x, 1), 1, name="guess")
        steps_of = v1.get_variable(
            "steps_of", [WORKERS], tf.int32, v1.zeros_initializer(), trainable=False
        )
        if towerpack.get_current_tower_context().is_training:
            steps_of.assign_add(tf.one_hot(worker[0], WORKERS, dtype=tf.int32))
        return tf.reduce_mean(tf.square(guess - y), name="cost")

    def optimizer(self) -> Any:
        return tf.keras.optimizers.SGD(0.02, momentum=0.5)


def launched() -> None:
    """Trains in the chief of four ranks, of which a worker and then the server are killed."""
    wrong = [
        message_of(DistributedTrainerReplicated),
        message_of(lambda: train(SimpleTrainer(), data=QueueInput(flow()), max_epoch=1000)),
    ]
    trainer = DistributedTrainerParameterServer()
    validation = InferenceRunner(flow(), ScalarStats("cost"))
    code = 0
    try:
        train(trainer, [validation, Faults(), ModelSaver()], max_epoch=1000)
    except SystemExit as error:
        code = error.code
    x, _ = arrays()
    weights = {name: v.numpy().tolist() for name, v in trainer.store.trainable().items()}
    result = {
        "wrong": wrong,
        "attempt": this_cluster().attempt,
        "step": trainer.global_step,
        "weights": weights,
        "guess": trainer.get_predictor(["x"], ["guess"])(x)[0].numpy().tolist(),
        "devices": sorted({v.device for v in trainer.store.variables.values()}),
    }
    Path(RESULT).write_text(json.dumps(result))
    sys.exit(code)


def without_supervisor(steps: int) -> int:
    """Trains in a cluster whose ranks nobody ends; the steps of the chief."""
    trainer = DistributedTrainerParameterServer()
    train(trainer, max_epoch=1, steps_per_epoch=steps)
    return trainer.global_step


class Faults(Callback):
    """Kills a worker, and the server once that worker is back; stops the run after the restart."""

    def _before_train(self) -> None:
        self.attempt, self.resumed_at = this_cluster().attempt, self.epoch_num
        self.killed: int | None = None  # how many steps the lost worker has done

    def _trigger_epoch(self) -> None:
        counts = self.trainer.store["steps_of"].numpy().tolist()
        with open(COUNTS, "a") as file:
            file.write(json.dumps([self.attempt, self.epoch_num, *counts]) + "\n")
        if self.attempt:
            if self.epoch_num == self.resumed_at + EPOCHS_AFTER:
                os.kill(os.getppid(), signal.SIGTERM)  # the launcher passes it on to all ranks
        elif self.epoch_num == 2:
            kill(LOST)
        elif self.epoch_num == 3:
            self.killed = counts[1]
        elif self.killed is not None and counts[1] > self.killed:
            kill(SERVER)


def kill(rank: int) -> None:
    """Kills a rank of this host: another child of the launcher."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            environ = (path / "environ").read_bytes() if parent == os.getppid() else b""
        except OSError:
            continue
        for variable in environ.split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == b"TOWERPACK_CLUSTER" and json.loads(value)["rank"] == rank:
                os.kill(int(path.name), signal.SIGKILL)


def alone() -> None:
    """Many short runs, with the server and the worker in this process."""
    costs: list[float] = []
    model = Regression.build_graph

    def not_a_number(self: Any, x: Any, y: Any, worker: Any) -> Any:
        late = tf.equal(towerpack.get_global_step_var(), 30)
        return model(self, x, y, worker) * tf.where(late, np.nan, 1.0)

    def no_slope(self: Any, x: Any, y: Any, worker: Any) -> Any:
        zeros = tf.reduce_sum(tf.square(FullyConnected("zero", x, 1) * 0.0))
        return model(self, x, y, worker) + tf.sqrt(zeros)

    def failing(self: Any, x: Any, y: Any, worker: Any) -> Any:
        return model(self, tf.debugging.check_numerics(x / 0.0, "made up"), y, worker)

    layer = tf.keras.layers.Dense(1, name="outside")
    layer.build([None, 4])

    def made_before(self: Any, x: Any, y: Any, worker: Any) -> Any:
        return tf.reduce_mean(tf.square(layer(x)[:, 0] - y))

    def run(build_graph: Any = model, *callbacks: Callback, **options: Any) -> Callable[[], None]:
        kind = type("Changed", (Regression,), {"build_graph": build_graph})
        trainer = DistributedTrainerParameterServer
        return lambda: train(trainer(), callbacks, model=kind(), **options)

    steps = run(model, ProcessTensors("cost", costs.append), max_epoch=1, steps_per_epoch=20)
    stop = run(model, StopAt(30), ModelSaver(), max_epoch=1)
    empty = PerWorkerInput(lambda worker, workers: batches(worker, workers).take(0))
    result = {
        "a flow": message_of(run(data=QueueInput(flow()))),
        "every step": [message_of(steps), len(costs), bool(costs[0] > costs[-1])],
        "stopped": message_of(stop),
        "resumed": message_of(run(model, max_epoch=1, resume="auto")),
        "no number": message_of(run(not_a_number)),
        "no slope": message_of(run(no_slope, ModelSaver(), steps_per_epoch=1)),
        "made before": message_of(run(made_before)),
        "failing": message_of(run(failing)),
        "empty": message_of(run(data=empty)),
        "half": message_of(lambda: DistributedTrainerParameterServer(precision="float16")),
    }
    Path(RESULT).write_text(json.dumps(result))


class StopAt(Callback):
    """Stops between two steps that it does not ask for, while others are under way."""

    def __init__(self, step: int):
        self.step = step

    def _trigger_step(self) -> None:
        if self.global_step >= self.step:
            raise StopTraining("enough")

    def _next_due(self) -> int | None:
        return None


def train(trainer: Any, callbacks: Sequence[Callback] = (), **options: Any) -> None:
    defaults = {
        "model": Regression(),
        "data": PerWorkerInput(batches),
        "max_epoch": 2,
        "steps_per_epoch": STEPS,
    }
    config = TrainConfig(**{**defaults, **options}, callbacks=list(callbacks))  # type: ignore[arg-type]
    launch_train_with_config(config, trainer)


def message_of(action: Callable[[], Any]) -> str:
    """The error of an action; empty if it succeeds."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 (the test reads it)
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    program, directory = sys.argv[1:]
    os.chdir(directory)
    logger.set_logger_dir("log", action="k")
    {"launched": launched, "alone": alone}[program]()

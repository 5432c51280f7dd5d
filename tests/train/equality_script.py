"""Trains small models on any number of ranks and towers; the results are compared by tests.

`train(argument)` is called by `run_ranks`. In one process the trainer has as many towers as all
ranks together have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tests.train.equality_models import (
    FEATURES,
    Dropped,
    DroppedByKeras,
    Embedded,
    Game,
    Model,
    Normalized,
    Stateful,
    Synchronized,
    TwoObjectives,
    with_optimizer,
)
from towerpack import optimizer
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    EMA,
    Callback,
    CallbackFactory,
    GradientNorm,
    ScheduledHyperParamSetter,
    StopTraining,
)
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays, DataFromGenerator
from towerpack.dataflow.base import DataFlowTerminated
from towerpack.input_source import (
    BatchQueueInput,
    QueueInput,
    StagingInput,
    TFDatasetInput,
)
from towerpack.keras import KerasModel
from towerpack.tower import gradproc
from towerpack.train import (
    DistributedTrainerReplicated,
    GANTrainer,
    NonFiniteCost,
    NoOpTrainer,
    SeparateGANTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainerReplicated,
    TowerTrainer,
    TrainConfig,
    launch_train_with_config,
    ranks_of_run,
)
from towerpack.train.devices import MirroredTowers, OneTower, tower_devices
from towerpack.train.multi_gpu import reduction_for

STEPS, BATCH = 20, 8


class SetAtStep(Callback):
    """Of the chief: sets a scalar after some steps, which is used from the next one on."""

    def _trigger_step(self):
        if self.global_step in (3, 4, 13):
            print("SET", self.global_step, flush=True)
            self.trainer.store["learning_rate"].assign(1 / self.global_step)

    def _next_due(self):
        return next((step for step in (3, 4, 13) if step > self.global_step), None)


class HalveWeights(Callback):
    """Of the chief: changes a large variable after an epoch."""

    def _trigger(self):
        if self.epoch_num < self.trainer.max_epoch:
            weights = self.trainer.store["fc0/W"]
            weights.assign(weights * 0.5)


class StopAtStep(Callback):
    """Of the chief: stops within an epoch, by the exception of a hook of steps."""

    def _next_due(self):
        return 13

    def _trigger_step(self):
        if self.global_step == 13:
            raise StopTraining("thirteen")


class StopBefore(Callback):
    def _before_train(self):
        raise StopTraining("nothing to do")


class Fetch(Callback):
    """Fetches tensors every third step, or in all; `names` differ between callbacks."""

    def __init__(self, names, every=1, chief_only=True):
        self.names, self.every, self.chief_only, self.seen = names, every, chief_only, 0

    def _next_due(self):
        return self.global_step + self.every - self.global_step % self.every

    def _before_run(self):
        return self.names

    def _after_run(self, values):
        self.seen += len(values)

    def _after_train(self):
        if self.seen != len(self.names) * (STEPS // self.every):
            raise RuntimeError(f"expected values of each step, received {self.seen}")


@dataclass
class Case:
    """What is trained, and how."""

    model: Callable[[], Any] = Model
    rows: int = 4 * BATCH * STEPS
    batch: int = BATCH
    steps_per_epoch: int | None = STEPS // 2
    epochs: int = 2
    options: dict[str, Any] = field(default_factory=lambda: {"steps_per_call": 7})
    callbacks: Callable[[], list[Callback]] = list
    data: Callable[[Case], Any] = lambda case: QueueInput(case.flow())
    run: Callable[[Case, Any, int], TowerTrainer] | None = None
    tolerance: float = 1e-5  # 0 means that all bits are equal
    trainer: Callable[..., TowerTrainer] = lambda *towers, **options: replicated(*towers, **options)
    like_one_process: bool = True  # or only like another run with as many ranks and towers

    def flow(self) -> Any:
        shuffled = DataFromArrays(*self.arrays(), shuffle=True)
        return BatchData(shuffled, self.batch, remainder=self.rows % BATCH > 0)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(self.rows, FEATURES)).astype(np.float32)
        return x, x.sum(1)

    def length(self) -> dict[str, Any]:
        return {
            "steps_per_epoch": self.steps_per_epoch,
            "max_epoch": self.epochs,
            "extra_callbacks": [],
            "monitors": [],
        }


def train(argument: dict[str, Any]) -> dict[str, Any]:
    """Trains the cases `names` on `towers` towers of each rank; returns their results."""
    logger.set_level("WARNING")
    found = {}
    tower_devices(argument["towers"])
    for name in argument["names"]:
        tf.keras.utils.set_random_seed(7)
        case = CASES[name]
        trainer = (case.run or train_config)(case, argument["towers"])
        found[name] = result_of(trainer)
    return found


def train_config(case: Case, towers: int) -> TowerTrainer:
    trainer = case.trainer(towers, **case.options)
    config = TrainConfig(
        model=case.model(),
        data=case.data(case),
        callbacks=case.callbacks(),
        **case.length(),
    )
    launch_train_with_config(config, trainer)
    return trainer


def replicated(towers: int, **options: Any) -> TowerTrainer:
    if ranks_of_run().size > 1:
        return DistributedTrainerReplicated(towers, **options)
    options.pop("compression", None)
    return SyncMultiGPUTrainerReplicated(towers, **options)


def twice(towers: int, **options: Any) -> TowerTrainer:
    """A trainer with a step of the user's own, which is two steps."""
    trainer = replicated(towers, **options)

    class Twice(type(trainer)):
        def run_step(self):
            self.step()
            self.step(("cost",))

    trainer.__class__ = Twice
    trainer.runs_many = False
    return trainer


def train_to_nan(case: Case, towers: int) -> TowerTrainer:
    """Batch 27, which is the second of step 14, has a NaN: one of two ranks receives it."""
    x, y = case.arrays()
    x[27 * BATCH + 3] = np.nan
    trainer = replicated(towers, **case.options)
    config = TrainConfig(
        model=Model(), dataflow=BatchData(DataFromArrays(x, y), BATCH), **case.length()
    )
    logger.set_logger_dir("nan", action="k")
    try:
        launch_train_with_config(config, trainer)
        raise RuntimeError("expected the run to stop at the NaN")
    except NonFiniteCost as error:
        step = int(re.search(r"of step (\d+)", str(error)).group(1))
        trainer.store["global_step"].assign(step)  # the one that was reported is compared
    return trainer


def as_dataset(case: Case, known: bool = True) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices(case.arrays())
    dataset = dataset.shuffle(100, seed=3, reshuffle_each_iteration=True)
    dataset = dataset.batch(BATCH, drop_remainder=True)
    return TFDatasetInput(dataset if known else dataset.filter(lambda x, y: True))


def generated(case: Case, ends: bool = False) -> BatchData:
    """A flow that is read from its beginning; with `ends` there is no second epoch."""
    rows = list(zip(*case.arrays(), strict=True))

    def generate():
        yield from rows
        if ends:
            raise DataFlowTerminated

    return BatchData(DataFromGenerator(generate), BATCH)


def train_gan(make: Callable[..., GANTrainer], case: Case, towers: int) -> TowerTrainer:
    rng = np.random.default_rng(0)
    real = rng.normal(2, 1, size=(96, 3)).astype(np.float32)
    flow = BatchData(DataFromArrays(real, rng.normal(size=(96, 2)).astype(np.float32)), BATCH)
    with make(QueueInput(flow), Game(), num_gpu=towers, **case.options) as trainer:
        trainer.train_with_defaults(
            steps_per_epoch=case.steps_per_epoch,
            max_epoch=case.epochs,
            extra_callbacks=[],
            monitors=[],
        )
    return trainer


def train_objectives(case: Case, towers: int) -> TowerTrainer:
    devices = tower_devices(towers)
    replication = OneTower(devices)
    if towers > 1:
        replication = MirroredTowers(devices, reduction_for(None, devices))
    with TwoObjectives(replication, ranks=ranks_of_run(), **case.options) as trainer:
        trainer.setup(QueueInput(case.flow()))
        trainer.train_with_defaults(
            steps_per_epoch=case.steps_per_epoch,
            max_epoch=case.epochs,
            extra_callbacks=[],
            monitors=[],
        )
    return trainer


def train_keras(case: Case, towers: int) -> TowerTrainer:
    def network(x):
        hidden = tf.keras.layers.Dense(8, "tanh", name="one")(x)
        hidden = tf.keras.layers.BatchNormalization(name="bn")(hidden)
        return tf.keras.layers.Dense(1, name="two")(hidden)

    trainer = replicated(towers, **case.options)
    x, y = Model().inputs()
    model = KerasModel(network, [x], [y], QueueInput(case.flow()), trainer)
    model.compile(tf.keras.optimizers.Adam(0.01), "mse", ["mae"])
    model.fit(**case.length())
    return trainer


def result_of(trainer: TowerTrainer) -> dict[str, Any]:
    """All variables that a checkpoint would have, and the moving averages of the summaries."""
    variables = trainer.store.saved().items()
    found = {
        name: tf.cast(v, tf.float64).numpy().ravel().tolist()
        for name, v in variables
        if not name.endswith("seed_generator_state")
    }
    if trainer.is_chief:
        averages = trainer.moving_averages.items()
        found |= {f"summary {name}": [average.value()] for name, average in averages}
    return found


CASES: dict[str, Case] = {
    "one step per call": Case(options={"steps_per_call": 1}),
    "seven steps per call": Case(),
    "as measured": Case(options={}),
    "eager": Case(options={"eager": True}),
    "short epochs": Case(rows=5 * BATCH, steps_per_epoch=None, epochs=5),
    "short last batches": Case(rows=11 * BATCH - 3),
    "Keras Adam": Case(model=with_optimizer(lambda: tf.keras.optimizers.Adam(0.01))),
    "Adam": Case(model=with_optimizer(lambda: optimizer.Adam(0.01))),
    "batch norm": Case(model=Normalized),
    "synchronized batch norm": Case(model=Synchronized),
    "dropout": Case(model=Dropped),
    "dropout of Keras": Case(model=DroppedByKeras),
    "stateful random numbers": Case(model=Stateful, like_one_process=False),
    "EMA, gradient norm": Case(callbacks=lambda: [EMA(0.9), GradientNorm()]),
    "clipped": Case(
        model=with_optimizer(
            lambda: optimizer.apply_grad_processors(
                optimizer.SGD(0.1), [gradproc.GlobalNormClip(0.5)]
            )
        )
    ),
    "accumulated": Case(
        model=with_optimizer(lambda: optimizer.AccumGradOptimizer(optimizer.SGD(0.1), 3))
    ),
    "bfloat16": Case(options={"precision": "bfloat16", "steps_per_call": 7}),
    "float16": Case(options={"precision": "float16", "steps_per_call": 7}),
    "compressed": Case(options={"compression": "bfloat16", "steps_per_call": 7}, tolerance=5e-3),
    "embedding": Case(model=Embedded),
    "summed": Case(
        model=with_optimizer(lambda: optimizer.SGD(0.01)),
        rows=11 * BATCH - 3,
        options={"average": False, "steps_per_call": 7},
    ),
    "staged": Case(data=lambda case: StagingInput(QueueInput(case.flow()))),
    "batches made by the source": Case(
        data=lambda case: BatchQueueInput(DataFromArrays(*case.arrays(), shuffle=True), BATCH)
    ),
    "read in order": Case(data=lambda case: QueueInput(generated(case))),
    "the end of a flow": Case(
        rows=29 * BATCH, data=lambda case: QueueInput(generated(case, ends=True))
    ),
    "tf.data": Case(data=as_dataset, rows=50 * BATCH),
    "the end of tf.data": Case(data=partial(as_dataset, known=False), rows=29 * BATCH),
    "rate set by a callback of the chief": Case(callbacks=lambda: [SetAtStep()]),
    "weights set by a callback of the chief": Case(callbacks=lambda: [HalveWeights()]),
    "schedule": Case(
        callbacks=lambda: [
            ScheduledHyperParamSetter("learning_rate", [(0, 0.2), (4, 0.05)], step_based=True)
        ]
    ),
    "stopped by the chief": Case(callbacks=lambda: [StopAtStep()]),
    "stopped before": Case(callbacks=lambda: [StopBefore()]),
    "fetched": Case(
        callbacks=lambda: [
            Fetch(["cost"], 5),
            Fetch(["fc0/output", "cost"], 4, chief_only=False),
        ]
    ),
    "two steps in one": Case(trainer=twice, steps_per_epoch=5),
    "NaN": Case(run=train_to_nan, rows=200 * BATCH),
    "GAN": Case(run=partial(train_gan, GANTrainer)),
    "separate GAN": Case(run=partial(train_gan, partial(SeparateGANTrainer, g_period=3))),
    "own objectives": Case(run=train_objectives),
    "Keras model": Case(run=train_keras),
}


class Fail(Callback):
    """Fails on one rank, between two steps."""

    chief_only = False

    def __init__(self, rank: int):
        self.rank = rank

    def _trigger_step(self):
        if self.trainer.ranks.rank == self.rank and self.global_step == 5:
            raise ValueError("only here")


def train_and_fail(rank: int) -> None:
    train_config(Case(callbacks=lambda: [Fail(rank)]), 1)


def train_alone(_: None) -> None:
    """An evaluation is done, and a training is refused."""
    evaluation = NoOpTrainer()
    done = CallbackFactory(trigger=lambda self: print("evaluated"))
    evaluation.train([done.set_chief_only(False)], [], steps_per_epoch=1, max_epoch=1)
    train_config(Case(trainer=lambda towers, **options: SimpleTrainer()), 1)

"""Short trainings for the tests of callbacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.tiny_model import BATCH, SAMPLES, TinyModel, tiny_flow
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, CallbackFactory
from towerpack.core import logger
from towerpack.input_source import QueueInput
from towerpack.monitor import MonitorBase
from towerpack.optimizer import SGD
from towerpack.tower import add_tensor_summary
from towerpack.train import SimpleTrainer

# The logger is prepared at its first use; `caplog` sees it only if that comes before the test.
logger.set_level("INFO")

STEPS = SAMPLES // BATCH  # of an epoch
FUSED = 4  # steps in one call, where nobody watches


class Model(TinyModel):
    """With a learning rate to change, a summary, and a binary decision."""

    def build_graph(self, x, label):
        cost = super().build_graph(x, label)
        tf.cast(label > 0, tf.int32, name="is_positive")
        tf.cast(x[:, 0] < x[:, 1], tf.int32, name="decision")
        tf.identity(x[:, 0], name="score")
        tf.identity(x[:, :, None] * 30, name="picture")
        add_tensor_summary(x, ["rms"], name="input")
        return cost

    def optimizer(self):
        return SGD(0.5)


class Kept(MonitorBase):
    """Keeps what was put."""

    def __init__(self):
        self.scalars, self.images, self.classes = [], [], {}

    def process_scalar(self, name, value, step, epoch):
        self.scalars.append((step, name, value))

    def process_image(self, name, images, step, epoch):
        self.images.append((step, name, images))

    def process_classes(self, name, counts, note):
        self.classes[name] = counts, note

    def of(self, name):
        return [value for _, known, value in self.scalars if known == name]


@dataclass
class Saved:
    """What a checkpoint would hold, as it would hold it."""

    variables: dict[str, Any]
    state: str

    @property
    def step(self) -> int:
        return json.loads(self.state)["global_step"]


class Keeper(Callback):
    """Keeps a checkpoint of every epoch in memory, and of a step within one."""

    chief_only = False

    def __init__(self, step: int | None = None):
        self.step, self.saved = step, []

    def _next_due(self):
        return self.step if self.step and self.global_step < self.step else None

    def _trigger_step(self):
        if self.global_step == self.step:
            self.trainer.when_settled(self._save)

    def _before_train(self):
        self.at_start = json.loads(json.dumps(self.trainer.callbacks.state()))

    def _trigger(self):
        self.trainer.when_settled(self._save)

    def _save(self):
        variables = {name: v.numpy() for name, v in self.trainer.store.saved().items()}
        self.saved.append(Saved(variables, json.dumps(self.trainer.state())))


@dataclass
class Run:
    trainer: Any
    monitor: Kept
    keeper: Keeper
    alone: list[int] = field(default_factory=list)  # steps that ran by themselves

    @property
    def saved(self) -> list[Saved]:
        return self.keeper.saved

    @property
    def at_start(self) -> Any:
        """The states of the callbacks when training began."""
        return self.keeper.at_start


def run(
    callbacks: Sequence[Callback],
    epochs: int = 2,
    resume: Saved | None = None,
    model: Any = None,
    trainer: Any = None,
    flow: Any = None,
    steps: int = STEPS,
    keeper: Keeper | None = None,
) -> Run:
    """Trains; returns what happened. With `resume`, goes on from there."""
    tf.random.set_seed(0)
    model = model or Model()
    trainer = trainer or SimpleTrainer(jit=False, steps_per_call=FUSED)
    result = Run(trainer, Kept(), keeper or Keeper())
    single = trainer.run_step

    def run_step():
        result.alone.append(trainer.global_step + 1)
        single()

    trainer.run_step = run_step
    with trainer:
        trainer.setup_graph(
            model.input_signature,
            QueueInput(flow or tiny_flow()),
            model.build_graph,
            model.optimizer,
        )
        trainer.setup_callbacks([*callbacks, result.keeper], [result.monitor])
        trainer.initialize()
        if resume is not None:
            for name, value in resume.variables.items():
                trainer.store[name].assign(value)
            trainer.restore(json.loads(resume.state))
        else:
            rng = np.random.default_rng(0)
            for variable in trainer.store.trainable().values():
                variable.assign(rng.normal(size=variable.shape, scale=0.1))
        trainer.main_loop(steps, 1, epochs)
    return result


def putting(values, name="error"):
    """Logs one of the values after each epoch."""
    return CallbackFactory(
        trigger=lambda self: self.trainer.monitors.put_scalar(name, values[self.epoch_num - 1])
    )

"""A trainer that is set up for a network, and trains it from any weights, on any rows."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from towerpack.callbacks import Callback
from towerpack.core import logger
from towerpack.input_source import InputSource
from towerpack.optimizer import Adam, Momentum
from towerpack.optimizer.base import LEARNING_RATE
from towerpack.sklearn.epochs import Epochs
from towerpack.sklearn.network import LOGITS, LOSS_SUM, Form, Network, in_chunks
from towerpack.tower.determinism import drawing_from
from towerpack.train import SimpleTrainer, SingleCostTrainer
from towerpack.train.devices import AsyncTowers

MOMENTUM = 0.9
SOLVERS: dict[str, Callable[[float], Any]] = {
    "adam": Adam,
    "sgd": lambda rate: Momentum(rate, MOMENTUM, nesterov=True),
}
STEPS_PER_CALL = 128
# Compiling by XLA takes some 0.4 s. It is worth it for that many steps, if several run in a call.
MANY_STEPS, FEW_STEPS = 1500, 4
KEPT = 8  # trainers that wait for their next fit


class Training:
    """A trainer whose step is traced for one network and one solver.

    `train` begins with the values that it is given. All variables are assigned then, so nothing of
    an earlier call has an effect.
    """

    def __init__(
        self,
        form: Form,
        solver: Callable[[], Any],
        source: Epochs,
        trainer: SingleCostTrainer,
    ):
        self.network, self.trainer = Network(form), trainer
        trainer.setup_graph(form.signature, source, self.network.tower, solver)
        self._fresh = self.values()

    def values(self) -> dict[str, np.ndarray]:
        """Copies of all variables: of the model, the optimizer and the counters."""
        return {name: v.numpy() for name, v in self.trainer.store.variables.items()}

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the model's variables."""
        variables = self.trainer.store.variables
        return {name: variables[name].numpy() for name in self.network.weight_names}

    def slow_down(self, factor: float, slowest: float) -> bool:
        """Multiplies the learning rate by `factor`, unless it is as low as `slowest`."""
        rate = self.trainer.store[LEARNING_RATE]
        high = float(rate) > slowest
        if high:
            rate.assign(rate * factor)
        return high

    def train(self, source: Epochs, values: Mapping[str, Any], epochs: int, after: Any) -> None:
        """Trains for up to `epochs` epochs. `after(training)` is called after each."""
        trainer = self.trainer
        for name, value in {**self._fresh, **values}.items():
            trainer.store[name].assign(value)
        trainer.input_source = source
        source.setup(trainer.tower_func.signature)
        trainer.setup_callbacks([AfterEpoch(lambda: after(self))], [])
        trainer.initialize()
        try:
            trainer.main_loop(source.steps, 1, epochs)
        finally:  # a trainer that waits for its next fit keeps no data
            trainer.input_source = InputSource()
            trainer.setup_callbacks([], [])

    def predictor(self) -> Callable[[Any], np.ndarray]:
        """A function from rows to logits, with the weights that are being trained."""
        if self.network.form.tower_func is None:
            return self.network.predictor(self.trainer.store.variables)
        predict = self.trainer.get_predictor(["x"], [LOGITS])
        return in_chunks(lambda x: predict(x)[0].numpy())

    def take_loss(self) -> float:
        """The loss of the epoch that has ended."""
        sums = [store[LOSS_SUM] for store in self.trainer.stores]
        loss = sum(float(each.numpy()[0]) for each in sums)
        for each in sums:
            each.assign([0.0])
        return loss


class AfterEpoch(Callback):
    """Calls a function after each epoch, which may raise `StopTraining`."""

    def __init__(self, function: Callable[[], None]):
        self._function = function

    def _after_epoch(self) -> None:
        self._function()


class Idle:
    """Trainings that wait for another fit of their key, the latest few; safe in any thread.

    Tracing a step takes some tenths of a second, which is more than many a fit: a grid search
    traces once for each form of its networks, and not once for each fit.
    """

    def __init__(self, size: int):
        self._size, self._lock = size, threading.Lock()
        self._kept: list[tuple[Any, Training]] = []

    def take(self, key: Any) -> Training | None:
        with self._lock:
            for number, (known, training) in enumerate(self._kept):
                if known == key:
                    del self._kept[number]
                    return training
        return None

    def give(self, key: Any, training: Training) -> None:
        with self._lock:
            self._kept = [*self._kept, (key, training)][-self._size :]


IDLE = Idle(KEPT)
SEEDED = threading.RLock()


@contextlib.contextmanager
def training_for(
    form: Form,
    solver: Any,
    rate: float,
    source: Epochs,
    epochs: int,
    trainer: SingleCostTrainer | None,
    seed: int,
) -> Iterator[Training]:
    """A training of this form, which nothing else uses meanwhile."""
    plain = form.tower_func is None and trainer is None and not callable(solver)
    compiled = plain and source.steps >= FEW_STEPS and epochs * source.steps >= MANY_STEPS
    trainer = trainer or default_trainer(compiled)
    if not plain:
        make = solver if callable(solver) else SOLVERS[solver]
        # TensorFlow has one global seed, which is another one while a network draws from `seed`.
        with SEEDED, drawing_from(seed), trainer:
            yield Training(form, lambda: make(rate), source, trainer)
        return
    # XLA compiles for the shapes of the data.
    key = form, solver, (source.steps, source.batch_size()) if compiled else None
    training = IDLE.take(key)
    if training is None:
        trainer.store.seed = 0  # hidden layers draw nothing, so TensorFlow's seed stays as it is
        training = Training(form, lambda: SOLVERS[solver](1.0), source, trainer)
    yield training  # after an error it is not used again
    IDLE.give(key, training)


def checked_trainer(make: Callable[[], Any] | None) -> SingleCostTrainer | None:
    """The trainer that a function of the user's makes, if it can train an estimator."""
    trainer = None if make is None else make()
    if trainer is None:
        return None
    if not isinstance(trainer, SingleCostTrainer):
        raise TypeError(f"expected trainer() to return a trainer of one cost, received {trainer!r}")
    if trainer.ranks.size > 1 or isinstance(trainer.replication, AsyncTowers):
        raise ValueError(
            "expected a trainer of one process whose towers work in step, received a "
            f"{type(trainer).__name__}; others train by launch_train_with_config"
        )
    return trainer


def default_trainer(compiled: bool) -> SimpleTrainer:
    """A trainer that measures nothing, so that equal seeds give equal weights, bit for bit."""
    return SimpleTrainer(jit=compiled, steps_per_call=STEPS_PER_CALL)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """While open, the console shows only warnings of this thread; the log file has everything."""
    logger.debug("training an estimator")  # makes the console's handler
    thread = threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.thread != thread

    handlers = [
        handler
        for handler in logging.getLogger("towerpack").handlers
        if not isinstance(handler, logging.FileHandler)
    ]
    for handler in handlers:
        handler.addFilter(passes)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(passes)

"""Training one cost on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.callbacks import StopTraining
from towerpack.checkpoint import ModelLoader
from towerpack.core import logger
from towerpack.input_source import InputSource
from towerpack.models import log_layer_table
from towerpack.tower import (
    TowerContext,
    TowerFunc,
    TowerTensorHandles,
    TracedTower,
    get_global_step_var,
)
from towerpack.tower.optimizer import Optimizer, as_optimizer
from towerpack.tower.summary import ALL_SUMMARIES, collect_summaries, update_moving_averages
from towerpack.tower.summary_writer import Probe, SummaryWriter, silenced
from towerpack.train.base import Trainer


class SimpleTrainer(Trainer):
    """Trains one tower on one device.

    Each step is one call of a traced function: it takes a batch from the input source, runs the
    tower, applies the gradients, runs every assignment made in the tower, and fetches what
    callbacks asked for. With `eager=True` the same step runs line by line instead, for a debugger;
    tensors then have no names, so callbacks cannot fetch them.
    """

    optimizer: Optimizer

    def __init__(self, eager: bool = False) -> None:
        super().__init__()
        self.eager = eager
        self._writer = SummaryWriter()
        self._writes_summaries = False
        self._steps: dict[tuple[str, ...], Any] = {}

    def setup_graph(
        self,
        input_signature: Sequence[Any],
        input: InputSource,
        get_cost_fn: Callable[..., Any],
        get_opt_fn: Callable[[], Any],
    ) -> None:
        """Makes the variables and traces the step."""
        self.tower_func = TowerFunc(get_cost_fn, input_signature)
        self.input_source = input
        input.setup(self.tower_func.signature)
        with tf.init_scope(), self.store.scope():
            self._step_counter = get_global_step_var()
            self.optimizer = as_optimizer(get_opt_fn())
        self._make_variables()
        self._step_for(())
        self.store.frozen_reason = "the training step has been built already"
        log_layer_table(self.store)
        weights = self.store.trainable().values()
        parameters = sum(variable.shape.num_elements() for variable in weights)
        logger.info("%d trainable variables, %s parameters", len(weights), f"{parameters:,}")

    @property
    def towers(self) -> TowerTensorHandles:
        """The towers built so far, for training and inference."""
        return self.tower_func.towers

    def initialize(self, session_init: ModelLoader | None = None) -> None:
        super().initialize(session_init)
        self.global_step = int(self._step_counter.numpy())
        self.input_source.start()

    def run_step(self) -> None:
        wanted = self.callbacks.fetches()
        names = tuple(dict.fromkeys(name for _, names in wanted for name in names))
        try:
            fetched = self._step_for(names)()
        except tf.errors.OutOfRangeError:
            self.input_source.raise_failure()
            raise StopTraining("the end of the data") from None
        self.global_step += 1
        values = tf.nest.map_structure(lambda tensor: tensor.numpy(), fetched)
        self.callbacks.deliver(wanted, values)

    def get_predictor(
        self, input_names: Sequence[str] | None, output_names: Sequence[str]
    ) -> Callable[..., list[Any]]:
        """A function from input arrays to output tensors that shares the variables in training."""
        return TracedTower(self.tower_func, self.store).function(input_names, output_names)

    def close(self) -> None:
        if hasattr(self, "input_source"):
            self.input_source.close()
        self._writer.close()

    def _step_for(self, fetches: tuple[str, ...]) -> Callable[[], dict[str, Any]]:
        """The traced step that also returns these tensors; one trace for each set of names."""
        if fetches not in self._steps:
            if self.epoch_num > self.starting_epoch:
                known = {name for names in self._steps for name in names}
                logger.warning(
                    "the step is traced again in epoch %d, because callbacks asked for %s; ask for "
                    "all tensors from the first epoch on to avoid the pause",
                    self.epoch_num,
                    sorted(set(fetches) - known) or "another set of tensors",
                )
            step = tf.function(lambda: self._step(fetches), autograph=False)
            self._steps[fetches] = step.get_concrete_function()
            self.optimizer.take_in_variables(self.store)
            self.store.adopt_all(self._steps[fetches].variables)
        # The trace has made the variables; in eager mode each step now runs line by line.
        return (lambda: self._step(fetches)) if self.eager else self._steps[fetches]

    def _make_variables(self) -> None:
        """Builds the tower once, to make its variables and to see whether it writes summaries.

        TensorFlow would trace a step that makes variables twice; so the second trace is the step's.
        """
        probe = Probe()

        def build() -> None:
            inputs = self.input_source.get_input_tensors()
            with (
                probe.recording(self._step_counter),
                TowerContext("", is_training=True, store=self.store),
            ):
                self.tower_func(*inputs)

        v1.wrap_function(build, [])
        self._writes_summaries = probe.found

    def _summary_writing(self, fetches: tuple[str, ...]) -> contextlib.AbstractContextManager[Any]:
        if ALL_SUMMARIES in fetches:
            return self._writer.recording(self._step_counter)
        return silenced()

    def _step(self, fetches: tuple[str, ...]) -> dict[str, Any]:
        inputs = self.input_source.get_input_tensors()
        with (
            self._summary_writing(fetches),
            TowerContext("", is_training=True, store=self.store) as context,
        ):
            with tf.GradientTape() as tape:
                tower = self.tower_func(*inputs)
            cost = checked_cost(tower.output)
            # Variables made outside of the tower function, by a Keras model say, are found by use.
            self.store.adopt_all(tape.watched_variables())
            weights = list(self.store.trainable().values())
            gradients = checked_gradients(tape.gradient(cost, weights), weights)
            self.optimizer.apply_gradients(gradients)
        self.moving_averages = update_moving_averages(context)
        summaries = collect_summaries(context)
        self.has_summaries = self._writes_summaries or any(summaries.values())
        self._step_counter.assign_add(1)
        return {
            name: summaries if name == ALL_SUMMARIES else tower.get_tensor(name) for name in fetches
        }


def checked_cost(cost: Any) -> Any:
    """The cost, or an error that says what the tower function must return."""
    if not tf.is_tensor(cost) or cost.shape.rank != 0 or not cost.dtype.is_floating:
        raise ValueError(
            "expected the tower function to return a scalar floating-point cost when training, "
            f"received {cost!r}. Take the mean over the batch: tf.reduce_mean(...)"
        )
    return cost


def checked_gradients(gradients: Sequence[Any], weights: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs with a gradient; variables that the cost does not depend on are named and left out."""
    pairs = list(zip(gradients, weights, strict=True))
    without = [weight.name.removesuffix(":0") for gradient, weight in pairs if gradient is None]
    if len(without) == len(pairs):
        raise ValueError("the cost depends on no trainable variable, so there is nothing to train")
    if without:
        logger.warning("no gradient for %s: the cost does not depend on them", without)
    return [(gradient, weight) for gradient, weight in pairs if gradient is not None]

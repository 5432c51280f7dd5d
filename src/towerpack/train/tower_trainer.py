"""Training with towers: the step as a graph, on one device or several."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import ClassFrequencies, StopTraining
from towerpack.checkpoint import ModelLoader
from towerpack.core import logger
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.source.stored import log_fixed_order
from towerpack.dataflow.stage.class_weight import known_classes
from towerpack.input_source.base import InputSource
from towerpack.input_source.buffer import Batches
from towerpack.models.regularize import CalledTooEarly
from towerpack.optimizer import Optimizer, as_optimizer
from towerpack.tower import (
    TowerFunc,
    TowerTensorHandle,
    TowerTensorHandles,
    TracedTower,
    get_global_step_var,
)
from towerpack.tower.context import Summary
from towerpack.tower.determinism import drawing_from, drawn_seed, seed_of_rank, tracing_with
from towerpack.train.autotune import Autotune, StepOptions
from towerpack.train.base import Trainer
from towerpack.train.builder import Objective, StepBuilder, checked_cost
from towerpack.train.devices import Copies, OneTower, device_names
from towerpack.train.fingerprint import facts
from towerpack.train.loss_scale import LossScale
from towerpack.train.non_finite import non_finite_error
from towerpack.train.ranks import OneRank, check_not_alone
from towerpack.train.resume import log_total_batch
from towerpack.train.runner import CannotCompile, Outcome, StepRunner
from towerpack.train.scheduler import StepScheduler


class TowerTrainer(Trainer):
    """Builds the tower on every device; a subclass says what is minimized (`objectives`).

    Each step is a call of a traced function: every tower gets a batch of its own from the input
    source, gradients are averaged over the towers, the optimizers apply them, every assignment made
    in a tower runs, and what callbacks asked for is fetched. Steps that no callback observes run
    many in one call.

    `replication` says on which devices the towers are and whose variables they use: one tower by
    default. `options` are those of `StepOptions`: `jit`, `steps_per_call`, `precision`,
    `loss_scale` and `eager`.
    """

    adopts_attributes = False  # towers and optimizers add their variables when they are traced
    persistent_tape = False  # whether several objectives take gradients of one tower
    builder_class: type[StepBuilder] = StepBuilder
    runner_class: type[StepRunner] = StepRunner

    def __init__(
        self,
        replication: OneTower | None = None,
        *,
        ranks: OneRank | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.replication = replication or OneTower()
        if ranks is not None:
            self.ranks, self.is_chief = ranks, ranks.is_chief
        self.batches_per_step = self.replication.count * self.ranks.size
        self.options = StepOptions(**options)
        if self.options.jit is True and self.batches_per_step > 1:
            raise ValueError("jit=True works on one device; expected jit=False on several")
        scaling = self.options.scaling
        self.loss_scale = None if scaling is None else LossScale(self.store, scaling)
        self.device_names = device_names(self.replication.devices) * self.ranks.size
        self.runs_many = type(self).run_step is TowerTrainer.run_step
        self.stores = [self.store]
        self.scheduler = StepScheduler(self)

    def objectives(self, tower: TowerTensorHandle) -> Sequence[Objective]:
        """What a tower minimizes; called for every tower while the step is traced."""
        raise NotImplementedError(f"{type(self).__name__} must define objectives()")

    def make_optimizers(self) -> None:
        """Makes the optimizers of one store, which is open; called once for each store."""

    def optimizers_of(self, index: int) -> Sequence[Any]:
        """The optimizers of a store, by its number."""
        return ()

    def variables_on(self, index: int) -> Any:
        """The device of a store's variables."""
        devices = self.replication.devices
        return tf.device(devices[index] if devices else None)

    def setup_towers(
        self, input_signature: Sequence[Any], input: InputSource, func: Callable[..., Any]
    ) -> None:
        """Makes the variables and traces the step."""
        check_not_alone(self)
        if self._tower_func is not None:
            raise RuntimeError(
                f"this {type(self).__name__} has been set up already, and its variables belong to "
                "that run; make a new trainer for each run. To train longer, call main_loop again"
            )
        self.tower_func = TowerFunc(func, input_signature)
        self.input_source = input
        if isinstance(flow := getattr(input, "flow", None), DataFlow):
            log_fixed_order(flow)
            if classes := known_classes(flow):
                counts, class_weight = classes
                self.register_callback(ClassFrequencies(training=counts, class_weight=class_weight))
        # None if the program has set a seed, or the run that is resumed has one.
        draws = self.is_chief and "seed" not in vars(self.store)
        seed = self.ranks.from_chief(drawn_seed() if draws else None)
        of_rank = seed_of_rank(seed, self.ranks.rank)
        with drawing_from(seed):
            input.devices = self.replication.devices
            input.share = self.ranks.share(self.replication.count)
            input.setup(self.tower_func.signature)
            # Drawn first, so that equal global seeds give equal weights, whatever the tower uses.
            self.store.seed = self.ranks.from_chief(self.store.seed)
            logger.debug("the seed of the towers is %d", self.store.seed)
            self.stores = self.replication.stores(self.store)
            self.copies = Copies(self.stores)
            for callback in self.copies.callbacks():
                self.register_callback(callback)
            with tf.init_scope():
                with self.store.scope():
                    counter = get_global_step_var()
                for index, store in enumerate(self.stores):
                    with self.variables_on(index), store.scope():
                        self.make_optimizers()
            self.builder = self.builder_class(self, counter)
            with tracing_with(of_rank):  # a source may draw its batches in a traced function
                specs = input.specs()
            self.runner = self.runner_class(self.builder, specs, of_rank, self.copies.copy_scalars)
            if self.replication.count > 1:
                # Before the towers run together, where TensorFlow would make mirrored variables.
                for index in range(len(self.stores)):
                    self.builder.make_variables(index)
            try:
                step = self.runner.single_step()
            except CalledTooEarly:  # the first trace has made the variables: now all are known
                step = self.runner.single_step()
            if len(self.stores) > 1 and not self.copies.copies_all_scalars():
                self.runner.forget()
                step = self.runner.single_step()
        for store in self.stores:
            store.complete("the training step has been built already")
        if self.ranks.size > 1:
            self.ranks.check_same(facts(self, step))
        self.autotune = self.make_autotune(step)
        weights, frozen = self.store.trainable(), self.store.frozen()
        parameters = sum(variable.shape.num_elements() for variable in weights.values())
        also = f"; {len(frozen)} are frozen" if frozen else ""
        logger.info(
            "%d trainable variables, %s parameters%s", len(weights), f"{parameters:,}", also
        )

    def make_autotune(self, step: Any) -> Autotune:
        """What decides how steps run, given the traced step."""
        return self.options.autotune(step, self.batches_per_step)

    @property
    def towers(self) -> TowerTensorHandles:
        """The towers built so far, for training and inference."""
        return self.tower_func.towers

    def initialize(self, session_init: ModelLoader | None = None) -> None:
        super().initialize(session_init)
        self.global_step = int(self.builder.step_counter.numpy())

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "input": self.input_source.state(),
            "mode": self.autotune.chosen,
            "towers": self.batches_per_step,
            "batch": self.input_source.batch_size(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if state["seed"] != self.store.seed:
            raise ValueError(
                "the seed of a resumed run must be known before its step is traced: pass resume= "
                "to TrainConfig, KerasModel.fit or the GAN trainer"
            )
        self.builder.step_counter.assign(self.global_step)
        if state.get("input") is not None:
            self.input_source.restore(state["input"])
        self.autotune.restore(state.get("mode", state.get("pace")))  # as older runs named it
        log_total_batch(state, self.batches_per_step, self.input_source.batch_size())

    def configuration(self) -> dict[str, Any]:
        return {
            **super().configuration(),
            "towers": self.replication.count,
            "ranks": self.ranks.size,
            **({"hosts": dict(Counter(self.ranks.hosts))} if self.ranks.hosts else {}),
            "parameters": sum(int(v.shape.num_elements()) for v in self.store.trainable().values()),
        }

    def main_loop(
        self, steps_per_epoch: int, starting_epoch: int = 1, max_epoch: int = 99999
    ) -> None:
        towers, batch = self.batches_per_step, self.input_source.batch_size()
        if towers > 1:
            logger.info(
                "the total batch size is %s, with %d steps per epoch",
                f"{towers} towers x {batch} = {towers * batch}" if batch else f"{towers} batches",
                steps_per_epoch,
            )
        self.input_source.start()
        super().main_loop(steps_per_epoch, starting_epoch, max_epoch)
        # After all callbacks: a checkpoint from which a run resumes has the weights of its step.
        for index in range(len(self.stores)):
            for optimizer in self.optimizers_of(index):
                optimizer.finalize()

    def steps(self, *fetches: str) -> Iterator[dict[str, Any]]:
        """Runs a step in each round of a loop of your own; ends when the data does.

        Needs `setup_graph` and nothing else: no callbacks, no epochs. Yields `global_step` and the
        values of the named tensors of the first tower.

            for step in trainer.steps("cost"):
                print(step["global_step"], step["cost"])
        """
        self.copies.copy_all()  # the values that were loaded, or set in the first tower
        while True:
            try:
                values = self.step(fetches)
            except StopTraining:
                return
            yield {"global_step": self.global_step, **values}

    def step(self, fetches: tuple[str, ...] = ()) -> dict[str, Any]:
        """Runs one step; returns the values of the named tensors of the first tower.

        Raises:
            StopTraining: the data has ended.
        """
        self.input_source.start()  # does nothing if it has been started
        if self.epoch_num > self.starting_epoch and (0, fetches) not in self.runner.traced:
            known = {name for key in self.runner.traced if key[0] == 0 for name in key[1]}
            logger.warning(
                "the step is traced again in epoch %d, because callbacks asked for %s; ask for "
                "all tensors from the first epoch on to avoid the pause",
                self.epoch_num,
                sorted(set(fetches) - known) or "another set of tensors",
            )
        batches, fetches = self.scheduler.one_step(fetches)
        outcome = self.runner.one(batches, fetches)
        self._done(outcome, batches)
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), outcome.fetched)

    def run_step(self) -> None:
        """One step by itself, with what callbacks want of it."""
        wanted = self.callbacks.fetches()
        names = tuple(dict.fromkeys(name for _, names in wanted for name in names))
        self.callbacks.deliver(wanted, self.step(names))

    def run_steps(self, count: int) -> int:
        batches, mode = self.scheduler.batches()
        started = time.perf_counter()
        try:
            outcome = self.runner.many(mode, batches)
        except CannotCompile as reason:
            self.autotune.drop(mode, str(reason))
            outcome = self.runner.many(self.autotune.mode, batches)
        self.autotune.note(mode, outcome.steps, time.perf_counter() - started)
        self._done(outcome, batches)
        return outcome.steps

    def wait_for_step(self, free: int) -> int:
        return self.scheduler.wait(free)

    def follow_chief(self, after_steps: bool = False) -> list[str]:
        changed = super().follow_chief(after_steps)
        if self.ranks.size > 1:
            self.scheduler.scalars.choose()
        if changed:
            self.copies.copy_all()
        return changed

    def _done(self, outcome: Outcome, batches: Batches) -> None:
        self.global_step += outcome.steps
        if outcome.finite:
            return
        towers, source = self.replication.count, self.input_source
        source.held += batches.count - outcome.steps * towers  # no step has trained on them
        last = outcome.steps * towers
        first = last - outcome.suspects * towers
        suspects = [batches.batch(number) for number in range(first, last)]
        saved = {}
        for tower in range(towers):
            columns = zip(*suspects[tower::towers], strict=True)
            for name, column in zip(self.tower_func.input_names, columns, strict=True):
                arrays = [np.asarray(component) for component in column]
                key = f"{name}_tower{tower}" if tower else name
                saved[key] = arrays[0] if len(arrays) == 1 else np.stack(arrays)
        raise non_finite_error(
            outcome.cost,
            self.global_step,
            outcome.suspects,
            source.position(source.delivered - batches.count + first),
            self.store.trainable(),
            saved,
            outcome.quick,
            f"-rank-{self.ranks.rank}" if self.ranks.size > 1 else "",
        )

    def get_predictor(
        self,
        input_names: Sequence[str] | None,
        output_names: Sequence[str],
        device: int | None = None,
    ) -> Callable[..., list[Any]]:
        """A function from input arrays to output tensors that shares the variables in training.

        `device` is the number of a tower's device, or -1 for the CPU; TensorFlow chooses without.
        """
        devices = self.replication.devices
        if device is not None and not -1 <= device < max(len(devices), 1):
            raise ValueError(f"expected a device of -1 to {len(devices) - 1}, received {device}")
        place = "/cpu:0" if device == -1 else None
        if device is not None and device >= 0 and devices:
            place = devices[device]
        with tf.device(place):
            return TracedTower(self.tower_func, self.store).function(input_names, output_names)

    def add_to_step(self, update: Callable[[Sequence[tuple[Any, Any]]], None]) -> None:
        """Adds `update` to every step, inside the graph, after the optimizer.

        It gets the gradients with their variables, of the main store, averaged over the towers.
        What was traced before is traced anew.
        """
        self.builder.additions.append(update)
        self.runner.forget()

    @property
    def has_summaries(self) -> bool:
        return self.builder.collects_summaries or self.builder.writes_summaries()

    def collected_summaries(self) -> Sequence[Summary]:
        return self.builder.writer.collected()

    def close(self) -> None:
        self.input_source.close()
        if hasattr(self, "builder"):
            self.builder.writer.close()
            self.runner.close()


class SingleCostTrainer(TowerTrainer):
    """Minimizes the scalar that the tower function returns, over all trainable variables."""

    def setup_graph(
        self,
        input_signature: Sequence[Any],
        input: InputSource,
        get_cost_fn: Callable[..., Any],
        get_opt_fn: Callable[[], Any],
    ) -> None:
        """Makes the variables and traces the step."""
        self._get_opt_fn = get_opt_fn
        self._optimizers: list[Optimizer] = []
        self._made: list[Any] = []
        self.setup_towers(input_signature, input, get_cost_fn)

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizers[0]

    def make_optimizers(self) -> None:
        made = self._get_opt_fn()
        if any(made is optimizer for optimizer in self._made):
            raise ValueError(
                "every tower needs an optimizer of its own here, but get_opt_fn returned the same "
                "one again; let it make a new one in each call"
            )
        self._made.append(made)
        self._optimizers.append(as_optimizer(made))

    def optimizers_of(self, index: int) -> Sequence[Optimizer]:
        return [self._optimizers[index]]

    def objectives(self, tower: TowerTensorHandle) -> Sequence[Objective]:
        store = tower.context.store
        optimizer = self._optimizers[self.stores.index(store)]
        return [Objective(checked_cost(tower.output), list(store.trainable().values()), optimizer)]


class SimpleTrainer(SingleCostTrainer):
    """Trains one tower on one device; the options are those of `StepOptions`."""

    def __init__(self, *unexpected: Any, **options: Any) -> None:
        if unexpected:
            raise TypeError(
                f"expected SimpleTrainer() with named options, received {unexpected[0]!r}; a "
                "config is passed to launch_train_with_config(config, SimpleTrainer()), or to the "
                "SimpleTrainer of towerpack.compat.train"
            )
        super().__init__(**options)

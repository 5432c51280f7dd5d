"""Training with towers: the step as a graph, on one device or several."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.callbacks import Callback, StopTraining
from towerpack.checkpoint import ModelLoader
from towerpack.core import logger
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.shuffled_source import log_fixed_order
from towerpack.input_source.base import InputSource
from towerpack.models import log_layer_table
from towerpack.models.regularize import CalledTooEarly
from towerpack.monitor import MonitorBase
from towerpack.tower import (
    TowerContext,
    TowerFunc,
    TowerTensorHandle,
    TowerTensorHandles,
    TracedTower,
    get_global_step_var,
)
from towerpack.tower.context import Summary
from towerpack.tower.determinism import drawing_from, drawn_seed, tracing_with
from towerpack.tower.gradproc import scaled
from towerpack.tower.precision import half_layers
from towerpack.tower.summary import (
    ALL_SUMMARIES,
    average_costs,
    collect_summaries,
    update_moving_averages,
)
from towerpack.tower.summary_writer import Probe, SummaryWriter, silenced
from towerpack.train.base import Trainer
from towerpack.train.built_tower import BuiltTower
from towerpack.train.copies import Copies
from towerpack.train.devices import device_names
from towerpack.train.loss_scale import LossScale
from towerpack.train.non_finite import BatchKeeper
from towerpack.train.objective import Objective, checked_gradients
from towerpack.train.pace import CHUNK, COMPILED, LOOP, STEP, Pace
from towerpack.train.replication import OneTower
from towerpack.train.resume import say_total_batch
from towerpack.train.step_graph import (
    CompiledLoop,
    trace_compiled_step,
    trace_loop,
    trace_step,
)
from towerpack.train.step_options import StepOptions
from towerpack.train.step_result import StepResult, changed
from towerpack.train.supply import Supply


class TowerTrainer(Trainer):
    """Builds the tower on every device; a subclass says what is minimized (`objectives`).

    Each step is part of a traced function: every tower takes a batch of its own from the input
    source, gradients are averaged over the towers, the optimizers apply them, every assignment made
    in a tower runs, and what callbacks asked for is fetched. Steps that nobody watches run many in
    one call.

    `replication` says on which devices the towers are and whose variables they use: one tower by
    default. `options` are those of `StepOptions`: `jit`, `steps_per_call`, `precision`,
    `loss_scale` and `eager`.
    """

    persistent_tape = False  # whether several objectives take gradients of one tower

    def __init__(self, replication: OneTower | None = None, **options: Any) -> None:
        super().__init__()
        self.replication = replication or OneTower()
        self.options = StepOptions(**options)
        if self.options.jit is True and self.replication.count > 1:
            raise ValueError("jit=True works on one device; expected jit=False on several")
        scaling = self.options.scaling
        self._loss_scale = None if scaling is None else LossScale(self.store, scaling)
        self.stores = [self.store]
        self.batches_taken = 0
        self._repeats_tower = False  # while a step builds its tower a second time
        self._writer = SummaryWriter()
        self._collects_summaries = False
        self._writes_summaries: bool | None = None  # by tf.summary; not known yet
        self._keeper = BatchKeeper()
        self._steps: dict[tuple[str, ...], Any] = {}
        self._loops: dict[str, Any] = {}
        self._additions: list[Callable[[Sequence[tuple[Any, Any]]], None]] = []

    def objectives(self, tower: TowerTensorHandle) -> Sequence[Objective]:
        """What a tower minimizes; called for every tower while the step is traced."""
        raise NotImplementedError(f"{type(self).__name__} must define objectives()")

    def make_optimizers(self) -> None:
        """Makes the optimizers of one store, which is open; called once for each store."""

    @functools.cached_property
    def _drawn_seed(self) -> int | None:
        """None if the program has set a seed, or the run that is resumed has one."""
        return None if "seed" in vars(self.store) else drawn_seed()

    def setup_towers(
        self, input_signature: Sequence[Any], input: InputSource, func: Callable[..., Any]
    ) -> None:
        """Makes the variables and traces the step."""
        if self._tower_func is not None:
            raise RuntimeError(
                f"this {type(self).__name__} has been set up already, and its variables belong to "
                "that run; make a new trainer for each run. To train longer, call main_loop again"
            )
        with drawing_from(self._drawn_seed):
            self._setup_towers(input_signature, input, func)

    def _setup_towers(
        self, input_signature: Sequence[Any], input: InputSource, func: Callable[..., Any]
    ) -> None:
        self.tower_func = TowerFunc(func, input_signature)
        self.input_source = input
        if isinstance(flow := getattr(input, "flow", None), DataFlow):
            log_fixed_order(flow)
        input.reserve(CHUNK * self.replication.count)
        input.setup(self.tower_func.signature)
        self._supply = Supply(input, self.replication.count, self.leave_if_interrupted)
        # Drawn first, so that equal global seeds give equal weights, whatever the tower uses.
        logger.debug("the seed of the towers is %d", self.store.seed)
        self.stores = self.replication.stores(self.store)
        self._copies = Copies(self.stores)
        with tf.init_scope():
            with self.store.scope():
                self._step_counter = get_global_step_var()
            for index, store in enumerate(self.stores):
                with self._device(index), store.scope():
                    self.make_optimizers()
        if self.replication.count > 1:
            # Before the towers run together, where TensorFlow would make mirrored variables.
            for index in range(len(self.stores)):
                self._make_variables(index)
        try:
            self._step_for(())
        except CalledTooEarly:  # the first trace has made the variables: now all are known
            self._step_for(())
        for store in self.stores:
            store.complete("the training step has been built already")
        self._pace = self._make_pace()
        log_layer_table(self.store)
        weights, frozen = self.store.trainable(), self.store.frozen()
        parameters = sum(variable.shape.num_elements() for variable in weights.values())
        also = f"; {len(frozen)} are frozen" if frozen else ""
        logger.info(
            "%d trainable variables, %s parameters%s", len(weights), f"{parameters:,}", also
        )

    @property
    def towers(self) -> TowerTensorHandles:
        """The towers built so far, for training and inference."""
        return self.tower_func.towers

    def setup_callbacks(
        self, callbacks: Sequence[Callback], monitors: Sequence[MonitorBase]
    ) -> None:
        super().setup_callbacks([*self._copies.callbacks(), *callbacks], monitors)

    def adopt_variables(self) -> list[str]:
        """None from attributes: towers and optimizers add their variables when they are traced."""
        return []

    def initialize(self, session_init: ModelLoader | None = None) -> None:
        super().initialize(session_init)
        self.global_step = int(self._step_counter.numpy())

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "input": self.input_source.state(self.batches_taken),
            "pace": self._pace.state(),
            "towers": self.replication.count,
            "batch": self.input_source.batch_size(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if state["seed"] != self.store.seed:
            raise ValueError(
                "the seed of a resumed run must be known before its step is traced: pass resume= "
                "to TrainConfig, KerasModel.fit or the GAN trainer"
            )
        self._step_counter.assign(self.global_step)
        if state.get("input") is not None:
            self.input_source.restore(state["input"])
        self._pace.restore(state.get("pace"))
        say_total_batch(state, self.replication.count, self.input_source.batch_size())

    @property
    def waiting_seconds(self) -> float:
        return self.input_source.waited

    def configuration(self) -> dict[str, Any]:
        return {
            **super().configuration(),
            "towers": self.replication.count,
            "parameters": sum(int(v.shape.num_elements()) for v in self.store.trainable().values()),
        }

    @property
    def device_names(self) -> tuple[str, ...]:
        return device_names(self.replication.devices)

    @property
    def batches_per_step(self) -> int:
        return self.replication.count

    def main_loop(
        self, steps_per_epoch: int, starting_epoch: int = 1, max_epoch: int = 99999
    ) -> None:
        self._log_total_batch(steps_per_epoch)
        self.input_source.start()
        super().main_loop(steps_per_epoch, starting_epoch, max_epoch)
        # After all callbacks: a checkpoint from which a run resumes has the weights of its step.
        for index in range(len(self.stores)):
            for optimizer in self.optimizers_of(index):
                optimizer.finalize()

    def _log_total_batch(self, steps_per_epoch: int) -> None:
        towers, batch = self.replication.count, self.input_source.batch_size()
        if towers > 1:
            logger.info(
                "the total batch size is %s, with %d steps per epoch",
                f"{towers} towers x {batch} = {towers * batch}" if batch else f"{towers} batches",
                steps_per_epoch,
            )

    def run_step(self) -> None:
        """One step by itself, with what callbacks want of it."""
        wanted = self.callbacks.fetches()
        names = tuple(dict.fromkeys(name for _, names in wanted for name in names))
        fetched = self.step(names)
        self.callbacks.deliver(wanted, fetched)

    def steps(self, *fetches: str) -> Iterator[dict[str, Any]]:
        """Runs a step in each round of a loop of your own; ends when the data does.

        Needs `setup_graph` and nothing else: no callbacks, no epochs. Yields `global_step` and the
        values of the named tensors of the first tower.

            for step in trainer.steps("cost"):
                print(step["global_step"], step["cost"])
        """
        self._copies.copy_all()  # the values that were loaded, or set in the first tower
        while True:
            try:
                values = self.step(fetches)
            except StopTraining:
                return
            yield {"global_step": self.global_step, **values}

    def step(self, fetches: tuple[str, ...] = ()) -> dict[str, Any]:
        """Runs one step; the values of the named tensors of the first tower."""
        self.input_source.start()  # does nothing if it has been started
        # A run_step of the user's own may take several: nobody leaves in the middle of it.
        self._supply.wait_for_step(self.batches_taken, looks=False)
        self._offer(1)
        finite, fetched = self._call(self._step_for(fetches))
        self._done(1, finite)
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), fetched)

    @property
    def runs_many(self) -> bool:
        return type(self).run_step is TowerTrainer.run_step

    def run_steps(self, count: int) -> int:
        way, planned = self._pace.plan(count)
        steps = self._ready(way, planned)
        if way != STEP and steps > 0 and (loop := self._loop_for(way)) is not None:
            started = time.perf_counter()
            if way == COMPILED:  # the loop takes its batches itself, and has its size only now
                steps = min(steps, self._pace.chunk)
            else:
                steps = self._offer(steps)
            done, finite = self._call(lambda: loop(tf.constant(steps)))
            done = int(done)
        else:
            started = time.perf_counter()
            self._offer(1)
            finite, _ = self._call(self._step_for(()))
            done = 1
        seconds = time.perf_counter() - started
        self._done(done, finite)
        self._pace.note(way if steps else STEP, done, seconds)
        return done

    def _ready(self, way: str, planned: int) -> int:
        """How many of the planned steps can run without waiting for data.

        0 for compiled steps when the next batch is of another size than the first.
        """
        if way == STEP:
            return 1
        wanted, patience = self._pace.when_late(way, planned)
        ready = self._supply.gather(wanted, patience, planned, self.batches_taken)
        if way == COMPILED:
            source = self.input_source
            ready = source.uniform(ready, self.batches_taken)
            if source.usual_shapes() is None:
                self._pace.drop(
                    way, f"{type(source).__name__} does not know the size of its batches"
                )
        return ready

    def wait_for_step(self) -> None:
        self._supply.wait_for_step(self.batches_taken)

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
        """Adds `update` to every step, inside the graph, behind the optimizer.

        It gets the gradients with their variables, of the main store, averaged over the towers.
        What was traced before is traced anew.
        """
        self._additions.append(update)
        self._steps.clear()
        self._loops.clear()

    def close(self) -> None:
        if hasattr(self, "input_source"):
            self.input_source.close()
        self._writer.close()

    def _offer(self, steps: int) -> int:
        """Has the source make ready what the graph will read; for how many steps."""
        towers = self.replication.count
        return self.input_source.offer(steps * towers, self.batches_taken) // towers

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except tf.errors.OutOfRangeError:
            self.input_source.raise_failure()
            raise StopTraining("the end of the data") from None

    def _done(self, steps: int, finite: Any) -> None:
        self.global_step += steps
        self.batches_taken += steps * self.replication.count
        if not bool(finite):
            first = self.batches_taken - self._keeper.steps * self.replication.count
            names, position = self.tower_func.input_names, self.input_source.position(first)
            raise self._keeper.error(self.global_step, names, position, self.store.trainable())

    def _step_for(self, fetches: tuple[str, ...]) -> Callable[[], Any]:
        """The traced step that also returns these tensors; one trace for each set of names."""
        if fetches not in self._steps:
            self._warn_if_late(fetches)
            with tracing_with(self._drawn_seed):
                traced = self._traced_step(fetches)
            self._steps[fetches] = traced
            self._adopt(traced)
        # The trace has made the variables; in eager mode each step now runs line by line.
        return (lambda: self._eager_step(fetches)) if self.options.eager else self._steps[fetches]

    def _traced_step(self, fetches: tuple[str, ...]) -> Any:
        if self.options.jit is True and not self._writes_files(fetches):
            return trace_compiled_step(self._build_step, fetches, self.input_source, self._keeper)
        return trace_step(self._build_step, fetches, self._keeper, self._copies.copy_scalars)

    def _eager_step(self, fetches: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
        result = self._build_step(fetches)
        finite = self._keeper.watch(result.finite(), result.cost, lambda: result.inputs)
        return finite, result.fetched

    def _warn_if_late(self, fetches: tuple[str, ...]) -> None:
        if self.epoch_num > self.starting_epoch:
            known = {name for names in self._steps for name in names}
            logger.warning(
                "the step is traced again in epoch %d, because callbacks asked for %s; ask for "
                "all tensors from the first epoch on to avoid the pause",
                self.epoch_num,
                sorted(set(fetches) - known) or "another set of tensors",
            )

    def _loop_for(self, way: str) -> Any:
        """The traced loop; None if there cannot be one, which is then not tried again."""
        if way not in self._loops:
            if way == LOOP:
                with tracing_with(self._drawn_seed):
                    self._loops[way] = trace_loop(
                        self._build_step, self._keeper, self._copies.copy_scalars
                    )
            else:
                try:
                    shapes = self.input_source.usual_shapes() or []
                    with tracing_with(self._drawn_seed):
                        loop = CompiledLoop(
                            self._build_step,
                            self.input_source,
                            shapes,
                            self._pace.fit_chunk(self._batch_bytes(shapes)),
                            self._keeper,
                            taken=lambda: self.batches_taken,
                        )
                except (tf.errors.OpError, ValueError, TypeError) as error:
                    self._pace.drop(way, f"{type(error).__name__}: {str(error).splitlines()[0]}")
                    return None
                self._loops[way] = loop
        return self._loops[way]

    def _batch_bytes(self, shapes: Sequence[Sequence[int]]) -> int:
        specs = self.input_source.signature
        return sum(
            math.prod(shape) * spec.dtype.size for spec, shape in zip(specs, shapes, strict=True)
        )

    def _adopt(self, traced: Any) -> None:
        """Takes variables that optimizers made in the trace into the store."""
        for index, store in enumerate(self.stores):
            for optimizer in self.optimizers_of(index):
                optimizer.take_in_variables(store)
        if len(self.stores) == 1:
            self.store.adopt_all(traced.variables)

    def optimizers_of(self, index: int) -> Sequence[Any]:
        """The optimizers of a store, by its number."""
        return ()

    def _make_pace(self) -> Pace:
        return self.options.pace(self._steps[()], self.replication.count)

    def _device(self, index: int) -> Any:
        devices = self.replication.devices
        return tf.device(devices[index] if devices else None)

    @property
    def has_summaries(self) -> bool:
        return self._collects_summaries or self._tower_writes()

    def collected_summaries(self) -> Sequence[Summary]:
        return self._writer.collected()

    def _writes_files(self, fetches: tuple[str, ...]) -> bool:
        """Of a step with these fetches; XLA does not, so that such a step is not compiled."""
        return ALL_SUMMARIES in fetches and self._tower_writes()

    def _tower_writes(self) -> bool:
        """Whether the tower writes by `tf.summary`; found out when somebody first asks."""
        if self._writes_summaries is None:
            self._make_variables(0)
        return bool(self._writes_summaries)

    def _make_variables(self, index: int) -> None:
        """Builds a tower by itself: makes its variables, and shows whether it writes summaries."""
        probe = Probe()

        def build(*inputs: Any) -> None:
            with (
                probe.recording(self._step_counter),
                self._context(index, probing=True) as context,
                tf.GradientTape() as tape,
            ):
                handle = self._call_tower(inputs)
                context.store.adopt_all(tape.watched_variables())
                for objective in self.objectives(handle):
                    objective.optimizer.loss_scale(list(objective.weights))  # makes its variables

        with self._device(index):
            v1.wrap_function(build, list(self.tower_func.signature))
        if index == 0:
            self._writes_summaries = probe.found

    def _context(self, index: int, probing: bool = False) -> TowerContext:
        own = len(self.stores) > 1
        return TowerContext(
            f"tower{index}" if index else "",
            is_training=True,
            store=self.stores[index if own else 0],
            index=index,
            total=self.replication.count,
            own_store=own,
            probing=probing,
            repeated=self._repeats_tower,
        )

    def _build_step(self, fetches: tuple[str, ...], inputs: Sequence[Any] | None = None) -> Any:
        """One step in the graph: all towers, their updates, and what is fetched."""
        # From the root of names also in a loop, where TensorFlow would put its name before all.
        with self._summary_writing(fetches), v1.name_scope(None):
            towers, cost = self.build_updates(inputs)
        main = towers[0]
        summaries = collect_summaries(main.context)
        if main.context.is_main_training_tower:
            for update in self._additions:
                update([pair for pairs in main.gradients for pair in pairs])
            costs = [objective.cost for objective in main.objectives]
            self.cost_names = average_costs(main.context, costs or [cost])
            self.moving_averages = update_moving_averages(main.context)
            self._collects_summaries = any(summaries.values())
            self._step_counter.assign_add(1)
        return StepResult(
            cost=tf.cast(cost, tf.float64),
            weights=changed(self.store.trainable().values(), main.gradients),
            inputs=[component for tower in towers for component in tower.inputs],
            fetched={
                name: summaries if name == ALL_SUMMARIES else main.handle.get_tensor(name)
                for name in fetches
            },
        )

    def build_updates(self, inputs: Sequence[Any] | None) -> tuple[list[BuiltTower], Any]:
        """Adds to the graph what a step changes: the towers, and the sum of their costs.

        `inputs` are read from the input source if there are none.
        """
        towers = self.replication.run(lambda index: self._build_tower(index, inputs))
        if self._loss_scale is None:
            self._apply(towers)
        else:
            gradients = [g for pairs in towers[0].gradients for g, _ in pairs]
            self._loss_scale.apply(gradients, lambda: self._apply(towers))
        costs = [objective.cost for tower in towers for objective in tower.objectives]
        return towers, tf.add_n([tf.cast(cost, tf.float64) for cost in costs])

    def _apply(self, towers: Sequence[BuiltTower]) -> None:
        for index in range(len(self.stores)):
            with self._device(index):
                towers[index].apply()

    def _call_tower(self, inputs: Sequence[Any]) -> TowerTensorHandle:
        if self.options.precision == "float32":
            return self.tower_func(*inputs)
        with half_layers(self.options.precision):
            return self.tower_func(*inputs)

    def _gradients(self, tape: Any, objective: Objective) -> list[tuple[Any, Any]]:
        """The gradients of one objective by variable, times the trainer's loss scale."""
        cost, weights = objective.cost, list(objective.weights)
        first = self._loss_scale.factor(cost.dtype) if self._loss_scale else None
        scale = objective.optimizer.loss_scale(weights)
        if scale is not None:
            scale = tf.cast(scale, cost.dtype)
            first = scale if first is None else first * scale
        gradients = tape.gradient(cost, weights, output_gradients=first)
        pairs = checked_gradients(gradients, weights)
        return pairs if scale is None else [(scaled(g, 1 / scale), v) for g, v in pairs]

    def _build_tower(self, index: int, inputs: Sequence[Any] | None) -> BuiltTower:
        if inputs is None:
            inputs = self.input_source.get_input_tensors()
        with self._context(index) as context:
            with tf.GradientTape(persistent=self.persistent_tape) as tape:
                handle = self._call_tower(inputs)
            # Variables made outside of the tower function, by a Keras model say, are found by use.
            self._copies.check_own(index, tape.watched_variables())
            context.store.adopt_all(tape.watched_variables())
            objectives = self.objectives(handle)
            gradients = [self._gradients(tape, objective) for objective in objectives]
            averaged = self.replication.average(
                [[gradient for gradient, _ in pairs] for pairs in gradients], unknown_batch(inputs)
            )
            if self._loss_scale:
                averaged = self._loss_scale.unscaled(averaged)
        pairs = [
            [(mean, variable) for mean, (_, variable) in zip(means, old, strict=True)]
            for means, old in zip(averaged, gradients, strict=True)
        ]
        return BuiltTower(context, handle, inputs, objectives, pairs)

    def _summary_writing(self, fetches: tuple[str, ...]) -> Any:
        if ALL_SUMMARIES in fetches and (self.options.jit is not True or self._tower_writes()):
            return self._writer.recording(self._step_counter)
        return silenced()


def unknown_batch(inputs: Sequence[Any]) -> Any:
    """The size of the batch where the graph does not know it; None where it does."""
    if not inputs or not inputs[0].shape.rank or inputs[0].shape[0] is not None:
        return None
    return tf.shape(inputs[0])[0]

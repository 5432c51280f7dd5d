"""Adds one training step to the graph that is being traced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.optimizer import Optimizer
from towerpack.tower import TowerContext, TowerTensorHandle
from towerpack.tower.gradproc import scaled
from towerpack.tower.precision import half_layers
from towerpack.tower.store import GLOBAL_STEP
from towerpack.tower.summary import (
    ALL_SUMMARIES,
    average_costs,
    collect_summaries,
    update_moving_averages,
)
from towerpack.tower.summary_writer import Probe, SummaryWriter, silenced
from towerpack.train.non_finite import all_finite, sum_is_finite
from towerpack.train.packing import open_size

if TYPE_CHECKING:
    from towerpack.train.tower_trainer import TowerTrainer

QUICK_SIZE = 4096  # elements: checking a weight of up to this size takes well under a microsecond


class Objective(NamedTuple):
    """A cost to be minimized by changing `weights`; a step may have several."""

    cost: Any
    weights: Sequence[Any]
    optimizer: Optimizer


@dataclass
class BuiltTower:
    """A tower, what it is to minimize, and the gradients, averaged over all towers."""

    context: TowerContext
    handle: TowerTensorHandle
    inputs: Sequence[Any]
    objectives: Sequence[Objective]
    gradients: Sequence[Sequence[tuple[Any, Any]]]

    def apply(self) -> None:
        """Adds the updates of the variables to the graph."""
        with self.context.resumed():
            for objective, pairs in zip(self.objectives, self.gradients, strict=True):
                objective.optimizer.apply_gradients(pairs)


class StepResult(NamedTuple):
    """One step in the graph that is being traced."""

    cost: Any  # the sum of the costs of all towers
    weights: Sequence[tuple[Any, Any]]  # see `changed`
    fetched: dict[str, Any]

    def finite(self) -> Any:
        """Whether the cost is finite, and the weights that the step left.

        Weights and not gradients: a gradient processor may have removed a NaN.
        """
        return all_finite(self._values())

    def sum_is_finite(self, quick: bool = False) -> Any:
        """The same at less cost; an overflow counts as infinite. `quick`: only small weights."""
        return sum_is_finite(self._values(quick))

    def _values(self, quick: bool = False) -> list[Any]:
        return [
            self.cost,
            *(
                variable if rows is None else tf.gather(variable, rows)
                for variable, rows in self.weights
                if not quick or variable.shape.num_elements() <= QUICK_SIZE
            ),
        ]


class StepBuilder:
    """Builds the step of a trainer: all towers, their updates, and what is fetched.

    The trainer says what is minimized (`objectives`), on which devices the towers are
    (`replication`), and how they compute (`options`). A subclass changes what a step updates
    (`updates`). `inputs` has the input tensors of each tower.
    """

    def __init__(self, trainer: TowerTrainer, step_counter: Any):
        self.trainer, self.step_counter = trainer, step_counter
        self.writer = SummaryWriter()
        self.additions: list[Any] = []
        self.collects_summaries = False
        self.repeats_tower = False  # while a step builds its tower a second time
        self._writes_summaries: bool | None = None  # by tf.summary; not known yet

    def step(self, fetches: tuple[str, ...], inputs: Sequence[Sequence[Any]]) -> StepResult:
        """Adds one step to the graph, or runs it if there is none."""
        trainer = self.trainer
        # At the root of names, also in a loop, where TensorFlow would put its name before all.
        with self._summaries(fetches), v1.name_scope(None):
            towers, cost = self.updates(inputs)
        main = towers[0]
        summaries = collect_summaries(main.context)
        if main.context.index == self.first_tower:
            for update in self.additions:
                update([pair for pairs in main.gradients for pair in pairs])
            self.step_counter.assign_add(1)
            for store in trainer.stores[1:]:  # random numbers of their towers depend on it
                if GLOBAL_STEP in store:
                    store[GLOBAL_STEP].assign_add(1)
        if main.context.is_main_training_tower:
            costs = [objective.cost for objective in main.objectives]
            trainer.cost_names = average_costs(main.context, costs or [cost])
            trainer.moving_averages = update_moving_averages(main.context)
            self.collects_summaries = any(summaries.values())
        return StepResult(
            cost=tf.cast(cost, tf.float64),
            weights=changed(trainer.store.trainable().values(), main.gradients),
            fetched=self._fetched(main, fetches, summaries),
        )

    def _fetched(self, main: BuiltTower, names: Sequence[str], summaries: Any) -> dict[str, Any]:
        """The tensors of these names; those that only the chief's first tower has, only there."""
        found = {}
        for name in names:
            try:
                found[name] = summaries if name == ALL_SUMMARIES else main.handle.get_tensor(name)
            except KeyError:
                if self.trainer.is_chief:
                    raise
        return found

    def updates(self, inputs: Sequence[Sequence[Any]]) -> tuple[list[BuiltTower], Any]:
        """Adds what a step changes; returns the towers, and the sum of their costs."""
        towers = self.trainer.replication.run(lambda index: self.tower(index, inputs[index]))
        towers, cost = self.trainer.ranks.combined(towers)
        loss_scale = self.trainer.loss_scale
        if loss_scale is None:
            self._apply(towers)
        else:
            gradients = [g for pairs in towers[0].gradients for g, _ in pairs]
            loss_scale.apply(gradients, lambda: self._apply(towers))
        return towers, cost

    def tower(self, index: int, inputs: Sequence[Any]) -> BuiltTower:
        """One tower with its gradients."""
        trainer = self.trainer
        with self.context(index) as context:
            with tf.GradientTape(persistent=trainer.persistent_tape) as tape:
                handle = self.call_tower(inputs)
            # Variables made outside of the tower function, by a Keras model say, are found by use.
            trainer.copies.check_own(index, tape.watched_variables())
            context.store.adopt_all(tape.watched_variables())
            objectives = trainer.objectives(handle)
            gradients = [self.gradients(tape, objective) for objective in objectives]
            averaged = trainer.replication.average(
                [[gradient for gradient, _ in pairs] for pairs in gradients], open_size(inputs)
            )
            if trainer.loss_scale:
                averaged = trainer.loss_scale.unscaled(averaged)
        pairs = [
            [(mean, variable) for mean, (_, variable) in zip(means, old, strict=True)]
            for means, old in zip(averaged, gradients, strict=True)
        ]
        return BuiltTower(context, handle, inputs, objectives, pairs)

    def context(self, index: int, probing: bool = False) -> TowerContext:
        stores = self.trainer.stores
        ranks, own = self.trainer.ranks, len(stores) > 1
        store = stores[index if own else 0]
        own |= index == 0  # a rank keeps the state of its first tower
        index += self.first_tower
        return TowerContext(
            f"tower{index}" if index else "",
            is_training=True,
            store=store,
            index=index,
            total=self.trainer.batches_per_step,
            own_store=own,
            probing=probing,
            repeated=self.repeats_tower,
            sum_over_ranks=None if probing or ranks.size == 1 else ranks.sum_in_tower,
        )

    @property
    def first_tower(self) -> int:
        """The number of this rank's first tower among those of all ranks."""
        return self.trainer.ranks.rank * self.trainer.replication.count

    def call_tower(self, inputs: Sequence[Any]) -> TowerTensorHandle:
        precision = self.trainer.options.precision
        if precision == "float32":
            return self.trainer.tower_func(*inputs)
        with half_layers(precision):
            return self.trainer.tower_func(*inputs)

    def make_variables(self, index: int) -> None:
        """Builds a tower by itself: makes its variables, and shows whether it writes summaries."""
        probe = Probe()

        def build(*inputs: Any) -> None:
            with (
                probe.recording(self.step_counter),
                self.context(index, probing=True) as context,
                tf.GradientTape() as tape,
            ):
                handle = self.call_tower(inputs)
                context.store.adopt_all(tape.watched_variables())
                for objective in self.trainer.objectives(handle):
                    objective.optimizer.loss_scale(list(objective.weights))  # makes its variables

        with self.trainer.variables_on(index):
            v1.wrap_function(build, list(self.trainer.tower_func.signature))
        if index == 0:
            self._writes_summaries = probe.found

    def adopt(self, traced: Any) -> None:
        """Adds variables that optimizers made in a trace to the store."""
        stores = self.trainer.stores
        for index, store in enumerate(stores):
            for optimizer in self.trainer.optimizers_of(index):
                optimizer.take_in_variables(store)
        if len(stores) == 1:
            stores[0].adopt_all(traced.variables)

    def writes_summaries(self) -> bool:
        """Whether the tower writes by `tf.summary`; found out when it is first asked."""
        if self._writes_summaries is None:
            self.make_variables(0)
        return bool(self._writes_summaries)

    def _summaries(self, fetches: tuple[str, ...]) -> Any:
        jit, wanted = self.trainer.options.jit is True, ALL_SUMMARIES in fetches
        if wanted and self.trainer.is_chief and (not jit or self.writes_summaries()):
            return self.writer.recording(self.step_counter)
        return silenced()

    def _apply(self, towers: Sequence[BuiltTower]) -> None:
        for index in range(len(self.trainer.stores)):
            with self.trainer.variables_on(index):
                towers[index].apply()

    def gradients(self, tape: Any, objective: Objective) -> list[tuple[Any, Any]]:
        """The gradients of one objective by variable, times the trainer's loss scale."""
        cost, weights = objective.cost, list(objective.weights)
        loss_scale = self.trainer.loss_scale
        first = loss_scale.factor(cost.dtype) if loss_scale else None
        scale = objective.optimizer.loss_scale(weights)
        if scale is not None:
            scale = tf.cast(scale, cost.dtype)
            first = scale if first is None else first * scale
        gradients = tape.gradient(cost, weights, output_gradients=first)
        pairs = checked_gradients(gradients, weights)
        return pairs if scale is None else [(scaled(g, 1 / scale), v) for g, v in pairs]


def changed(weights: Iterable[Any], gradients: Iterable[Sequence[tuple[Any, Any]]]) -> list[Any]:
    """The weights, each with the rows that its gradient is of; with None for all of them.

    A table of embeddings may be many times as large as what a step changes of it.
    """
    rows = {
        id(variable): gradient.indices
        for pairs in gradients
        for gradient, variable in pairs
        if isinstance(gradient, tf.IndexedSlices)
    }
    return [(variable, rows.get(id(variable))) for variable in weights]


def checked_cost(cost: Any) -> Any:
    """The cost, or an error that says what the tower function must return."""
    if not tf.is_tensor(cost) or cost.shape.rank != 0 or not cost.dtype.is_floating:
        raise ValueError(
            "expected the tower function to return a scalar floating-point cost when training, "
            f"received {cost!r}. Take the mean over the batch: tf.reduce_mean(...)"
        )
    return cost


def checked_gradients(gradients: Sequence[Any], weights: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs with a gradient; variables that the cost does not depend on are logged and left out."""
    pairs = list(zip(gradients, weights, strict=True))
    without = [weight.name.removesuffix(":0") for gradient, weight in pairs if gradient is None]
    if len(without) == len(pairs):
        raise ValueError("the cost depends on no trainable variable, so there is nothing to train")
    if without:
        logger.warning("no gradient for %s: the cost does not depend on them", without)
    return [(gradient, weight) for gradient, weight in pairs if gradient is not None]

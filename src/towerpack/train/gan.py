"""Two networks that train against each other.

A `GANModelDesc` says what the losses are and which variables belong to which network; a trainer
says in which order the two are updated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf
from towerpack.checkpoint import ModelLoader
from towerpack.dataflow.base import DataFlow
from towerpack.input_source import InputSource, apply_default_prefetch
from towerpack.models import ModelDesc
from towerpack.optimizer import Optimizer, as_optimizer
from towerpack.tower import TowerTensorHandle, add_moving_summary, get_current_tower_context
from towerpack.tower.summary_writer import silenced
from towerpack.train.builder import BuiltTower, Objective, StepBuilder, checked_cost
from towerpack.train.devices import MirroredTowers, OneTower, tower_devices, towers_on
from towerpack.train.distributed import ranks_of_run
from towerpack.train.multi_gpu import reduction_for
from towerpack.train.resume import find_run
from towerpack.train.tower_trainer import TowerTrainer

Variables = str | re.Pattern[str] | Iterable[Any]
"""Which variables: those of a scope, those whose names match a pattern, or just these."""

G, D = "g", "d"


class GANModelDesc(ModelDesc):
    """A generator and a discriminator in one tower function.

    `build_graph` sets `g_loss` and `d_loss` (with `build_losses`, or its own) and `g_vars` and
    `d_vars` (with `collect_variables`, or itself); it returns nothing. Each network has an
    optimizer of its own: both come from `optimizer()`, unless `g_optimizer()` and `d_optimizer()`
    say otherwise.

        def build_graph(self, image):
            with tf.compat.v1.variable_scope("gen"):
                fake = self.generator(z)
            with tf.compat.v1.variable_scope("discrim"):  # a function under auto_reuse_...
                real_logits, fake_logits = self.discriminator(image), self.discriminator(fake)
            self.build_losses(real_logits, fake_logits)
            self.collect_variables()
    """

    g_loss: Any
    d_loss: Any
    g_vars: Sequence[Any]
    d_vars: Sequence[Any]

    def collect_variables(self, g_scope: Variables = "gen", d_scope: Variables = "discrim") -> None:
        """Sets `g_vars` and `d_vars`, at the end of `build_graph`.

        Each argument is a variable scope, a pattern that a name must match from its start up to
        a `/` or its end, or a list of variables, of Keras' too.
        """
        self.g_vars, self.d_vars = _choose(g_scope), _choose(d_scope)
        both = [v.name for v in self.g_vars if any(v is other for other in self.d_vars)]
        if both:
            raise ValueError(f"expected two networks without a common variable, received {both}")

    def build_losses(self, logits_real: Any, logits_fake: Any) -> None:
        """Sets `g_loss` and `d_loss` of the usual game, and logs them with the accuracies.

        `d_loss` is the mean of the cross entropies of both kinds of pictures; `g_loss` is that of
        generated ones taken for real, which has a gradient also where D is sure of itself.
        """
        with tf.name_scope("GAN_loss"):
            with tf.name_scope("discrim"):
                real = _cross_entropy(logits_real, tf.ones_like, "loss_real")
                fake = _cross_entropy(logits_fake, tf.zeros_like, "loss_fake")
                right_real = _share(logits_real > 0, "accuracy_real")
                right_fake = _share(logits_fake < 0, "accuracy_fake")
                self.d_loss = tf.multiply(0.5, real + fake, name="loss")
                d_accuracy = tf.multiply(0.5, right_real + right_fake, name="accuracy")
            with tf.name_scope("gen"):
                self.g_loss = _cross_entropy(logits_fake, tf.ones_like, "loss")
                g_accuracy = _share(logits_fake > 0, "accuracy")
        add_moving_summary(self.g_loss, self.d_loss, g_accuracy, d_accuracy)

    def g_optimizer(self) -> Any:
        """The generator's optimizer."""
        return self.optimizer()

    def d_optimizer(self) -> Any:
        """The discriminator's optimizer."""
        return self.optimizer()


class GANTrainer(TowerTrainer):
    """Updates both networks in every step, from one run of the tower.

    Both gradients are taken before either network changes. The towers of several devices share
    their variables and average their gradients; each takes a batch of its own. Several ranks that
    `towerpack launch` started do so, too (see `DistributedTrainerReplicated`). The step is built
    here, so that `train` or `train_with_defaults` is what is left to call. With `resume='auto'` (or
    a directory) it continues from the latest checkpoint there, as `TrainConfig` says. `options` are
    those of `TowerTrainer`.
    """

    persistent_tape = True

    def __init__(
        self,
        input: InputSource | DataFlow,
        model: GANModelDesc,
        num_gpu: int | Sequence[int] = 1,
        *,
        resume: str | Path | None = None,
        **options: Any,
    ) -> None:
        towers = OneTower()
        if num_gpu not in (0, 1):  # on one device TensorFlow chooses which
            devices = tower_devices(num_gpu)
            reduction = reduction_for(None, devices)
            towers = towers_on(devices, lambda: MirroredTowers(devices, reduction))
        super().__init__(towers, ranks=ranks_of_run(), **options)
        if not isinstance(model, GANModelDesc):
            raise TypeError(f"expected a GANModelDesc, received {model!r}")
        self._run = find_run(resume)
        if self._run is not None:
            self.store.seed = self._run.seed
        self.model = model
        self.optimizers: dict[str, Optimizer] = {}
        source = apply_default_prefetch(input, self)
        self.setup_towers(model.input_signature, source, model.build_graph)

    def initialize(self, session_init: ModelLoader | None = None) -> None:
        super().initialize(self._run or session_init)

    def make_optimizers(self) -> None:
        self.optimizers[D] = as_optimizer(self.model.d_optimizer())
        self.optimizers[G] = as_optimizer(self.model.g_optimizer())
        if self.optimizers[G] is self.optimizers[D] or _same_inside(*self.optimizers.values()):
            raise ValueError(
                "the two networks got the same optimizer object, whose state is of one of them; "
                "make a new one in each call of optimizer()"
            )

    def optimizers_of(self, index: int) -> Sequence[Optimizer]:
        return list(self.optimizers.values())

    def objectives(self, tower: TowerTensorHandle) -> Sequence[Objective]:
        return [self.objective(D), self.objective(G)]

    def objective(self, network: str) -> Objective:
        """What a network of the tower that was built last minimizes."""
        loss, weights = (
            getattr(self.model, f"{network}_{what}", None) for what in ("loss", "vars")
        )
        if loss is None or not weights:
            raise ValueError(
                f"expected build_graph of {type(self.model).__name__} to set {network}_loss (see "
                f"build_losses) and {network}_vars (see collect_variables), received {loss!r} and "
                f"{weights!r}"
            )
        return Objective(checked_cost(loss), list(weights), self.optimizers[network])


class MultiGPUGANTrainer(GANTrainer):
    """`GANTrainer` on several devices; gradients are averaged, so the batch is batch x devices."""

    def __init__(
        self,
        num_gpu: int | Sequence[int],
        input: InputSource | DataFlow,
        model: GANModelDesc,
        **options: Any,
    ) -> None:
        super().__init__(input, model, num_gpu, **options)


class SeparateUpdates(StepBuilder):
    """Builds a tower for each network: first the discriminator's update, then the generator's."""

    trainer: SeparateGANTrainer

    def updates(self, inputs: Sequence[Sequence[Any]]) -> tuple[list[BuiltTower], Any]:
        always = D if self.trainer.periods[D] == 1 else G  # its tower is the one callbacks see
        towers: list[BuiltTower] = []
        costs = []
        for network in (D, G):
            if network == always:
                towers, cost = self._update(network, inputs)
            else:
                cost = self._sometimes(network, inputs)
            costs.append(cost)
        return towers, tf.add_n(costs)

    def _update(
        self, network: str, inputs: Sequence[Sequence[Any]]
    ) -> tuple[list[BuiltTower], Any]:
        self.trainer.network = network
        return super().updates(inputs)

    def _sometimes(self, network: str, inputs: Sequence[Sequence[Any]]) -> Any:
        """Adds the update of a network in the steps that its period names.

        The other tower of the step writes the summaries and updates moving averages.
        """

        def update() -> Any:
            self.repeats_tower = True
            try:
                with silenced():
                    return self._update(network, inputs)[1]
            finally:
                self.repeats_tower = False

        period = self.trainer.periods[network]
        if period == 1:
            return update()
        due = tf.equal(self.step_counter % period, 0)
        return tf.cond(due, update, lambda: tf.constant(0.0, tf.float64))


class SeparateGANTrainer(GANTrainer):
    """Updates the discriminator, then the generator against it; each one periodically.

    The steps 1, 1 + `d_period`, 1 + 2 * `d_period`, ... update the discriminator, likewise for the
    generator; one of the two periods is 1. So `g_period=5` is five updates of the discriminator for
    one of the generator. Where both are due, the tower runs twice, with the same batch: the
    generator meets the discriminator of after its update. Moving averages (batch normalization)
    are updated once in every step, by the network whose period is 1, or by the discriminator.
    """

    builder_class = SeparateUpdates

    def __init__(
        self,
        input: InputSource | DataFlow,
        model: GANModelDesc,
        d_period: int = 1,
        g_period: int = 1,
        **options: Any,
    ) -> None:
        if min(d_period, g_period) != 1:
            raise ValueError(
                "expected d_period and g_period to be at least 1, and one of them to be 1, since "
                f"every step updates a network; received {d_period} and {g_period}"
            )
        self.periods = {D: d_period, G: g_period}
        self.network = D
        super().__init__(input, model, **options)

    def objectives(self, tower: TowerTensorHandle) -> Sequence[Objective]:
        if tower.context.probing:  # both optimizers make their variables
            return super().objectives(tower)
        return [self.objective(self.network)]


def _choose(which: Variables) -> list[Any]:
    if not isinstance(which, str | re.Pattern):
        # A Keras variable holds the one of TensorFlow that gradients and the store know.
        return [v.value if isinstance(v, tf.keras.Variable) else v for v in which]
    context = get_current_tower_context()
    if context is None:
        raise RuntimeError("variables are collected while a tower is built, in build_graph")
    text = which if isinstance(which, str) else which.pattern
    pattern = re.compile(f"(?:{text.rstrip('/')})(?:/|$)", getattr(which, "flags", 0))
    names = context.store.trainable()
    found = [variable for name, variable in names.items() if pattern.match(name)]
    if not found:
        raise ValueError(
            f"no trainable variable is in the scope {text!r}; there are {list(names)}. Build each "
            "network under its own variable scope, or pass lists of variables"
        )
    return found


def _cross_entropy(logits: Any, labels: Callable[[Any], Any], name: str) -> Any:
    loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels(logits), logits=logits)
    return tf.reduce_mean(loss, name=name)


def _share(right: Any, name: str) -> Any:
    return tf.reduce_mean(tf.cast(right, tf.float32), name=name)


def _same_inside(first: Optimizer, second: Optimizer) -> bool:
    inner = getattr(first, "optimizer", None)
    return inner is not None and inner is getattr(second, "optimizer", None)

"""GAN trainers against the same updates done by hand with plain TensorFlow."""

import re

import numpy as np
import pytest

from towerpack import optimizer
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import Callback, ModelSaver
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import QueueInput
from towerpack.models import BatchNorm, FullyConnected
from towerpack.tower import auto_reuse_variable_scope
from towerpack.train import (
    GANModelDesc,
    GANTrainer,
    MultiGPUGANTrainer,
    SeparateGANTrainer,
    TowerTrainer,
)

STEPS, BATCH = 7, 8
NAMES = [f"{net}/{layer}/{kind}" for net in ("gen", "discrim") for layer in "ab" for kind in "Wb"]
OPTIMIZERS = {
    "fused": lambda: optimizer.Adam(0.05, beta1=0.5),
    "v1": lambda: v1.train.AdamOptimizer(0.05, beta1=0.5),
    "keras": lambda: tf.keras.optimizers.Adam(0.05, beta_1=0.5, epsilon=1e-8),
    "accumulated": lambda: optimizer.AccumGradOptimizer(optimizer.SGD(0.1), 2),
}


class Game(GANModelDesc):
    """Two small networks; the noise comes with the data, so that it can be done by hand."""

    def __init__(self, optimizer=OPTIMIZERS["fused"], penalty=None):
        self.make_optimizer, self.penalty = optimizer, penalty

    def inputs(self):
        return [
            tf.TensorSpec([None, 3], tf.float32, "real"),
            tf.TensorSpec([None, 2], tf.float32, "z"),
        ]

    @auto_reuse_variable_scope
    def discriminator(self, x):
        return FullyConnected("b", FullyConnected("a", x, 5, activation=tf.nn.tanh), 1)

    def build_graph(self, real, z):
        with v1.variable_scope("gen"):
            fake = FullyConnected("b", FullyConnected("a", z, 4, activation=tf.nn.tanh), 3)
        fake = tf.identity(fake, name="fake")
        with v1.variable_scope("discrim"):
            real_logits, fake_logits = self.discriminator(real), self.discriminator(fake)
            between = (real + fake) / 2
            if self.penalty == "tf.gradients":
                (slope,) = tf.gradients(self.discriminator(between), [between])
            elif self.penalty == "tape":
                with tf.GradientTape() as tape:
                    tape.watch(between)
                    logits = self.discriminator(between)
                slope = tape.gradient(logits, between)
        self.build_losses(real_logits, fake_logits)
        if self.penalty:
            self.d_loss = self.d_loss + tf.reduce_mean(tf.square(tf.norm(slope, axis=1) - 1))
        self.collect_variables()

    def optimizer(self):
        return self.make_optimizer()


def data(batch=BATCH, count=96):
    rng = np.random.default_rng(0)
    real = rng.normal(2, 1, size=(count, 3)).astype(np.float32)
    return BatchData(DataFromArrays(real, rng.normal(size=(count, 2)).astype(np.float32)), batch)


class Hand:
    """The same game in plain TensorFlow, eagerly."""

    def __init__(self, trainer, penalty=False, make_optimizer=OPTIMIZERS["keras"]):
        self.v = {name: tf.Variable(trainer.store[name]) for name in NAMES}
        self.adam = {"gen": make_optimizer(), "discrim": make_optimizer()}
        self.penalty = penalty

    def net(self, name, x):
        hidden = tf.tanh(x @ self.v[f"{name}/a/W"] + self.v[f"{name}/a/b"])
        return hidden @ self.v[f"{name}/b/W"] + self.v[f"{name}/b/b"]

    def losses(self, real, z):
        fake = self.net("gen", z)
        on_real, on_fake = self.net("discrim", real), self.net("discrim", fake)
        d_loss = tf.reduce_mean(tf.nn.softplus(-on_real) + tf.nn.softplus(on_fake)) / 2
        if self.penalty:
            between = (real + fake) / 2
            with tf.GradientTape() as tape:
                tape.watch(between)
                logits = self.net("discrim", between)
            slope = tape.gradient(logits, between)
            d_loss += tf.reduce_mean(tf.square(tf.norm(slope, axis=1) - 1))
        return {"gen": tf.reduce_mean(tf.nn.softplus(-on_fake)), "discrim": d_loss}

    def update(self, real, z, *networks):
        """Updates the networks at once."""
        with tf.GradientTape(persistent=True) as tape:
            losses = self.losses(real, z)
        variables = {n: [v for k, v in self.v.items() if k.startswith(n)] for n in networks}
        gradients = {n: tape.gradient(losses[n], variables[n]) for n in networks}
        for name in networks:
            pairs = zip(gradients[name], variables[name], strict=True)
            self.adam[name].apply_gradients(pairs)

    def check(self, trainer, atol=1e-5):
        for name in NAMES:
            np.testing.assert_allclose(trainer.store[name], self.v[name], atol=atol, err_msg=name)


@pytest.fixture(autouse=True)
def same_weights():
    """Adam turns the rounding of a gradient near zero into a step: not with these weights."""
    tf.random.set_seed(1)


def batches(batch=BATCH):
    return [[tf.constant(x) for x in dp] for dp in data(batch)][:STEPS]


def run(trainer, steps=STEPS, callbacks=()):
    with trainer:
        trainer.train(list(callbacks), [], steps_per_epoch=steps, max_epoch=1)


class WatchesAll(Callback):
    """Makes every step run by itself."""

    def _trigger_step(self):
        pass


@pytest.mark.parametrize("kind", ["fused", "v1", "keras"])
def test_both_networks_are_updated_from_the_same_values(kind):
    trainer = GANTrainer(QueueInput(data()), Game(OPTIMIZERS[kind]), jit=False)
    hand = Hand(trainer)
    run(trainer)
    for real, z in batches():
        hand.update(real, z, "gen", "discrim")
    hand.check(trainer)
    assert trainer.global_step == STEPS


@pytest.mark.parametrize("kind, way", [(GANTrainer, "tf.gradients"), (SeparateGANTrainer, "tape")])
def test_a_gradient_penalty_is_differentiated_again(kind, way):
    trainer = kind(QueueInput(data()), Game(penalty=way), jit=False)
    hand = Hand(trainer, penalty=True)
    run(trainer)
    for real, z in batches():
        if kind is GANTrainer:
            hand.update(real, z, "gen", "discrim")
        else:
            hand.update(real, z, "discrim")
            hand.update(real, z, "gen")
    hand.check(trainer)


@pytest.mark.parametrize("periods", [(1, 3), (2, 1)])
@pytest.mark.parametrize("kind", ["v1", "keras"])
def test_separate_updates_come_in_their_periods_the_discriminator_first(periods, kind):
    d_period, g_period = periods
    game = Game(OPTIMIZERS[kind])
    trainer = SeparateGANTrainer(QueueInput(data()), game, d_period, g_period, jit=False)
    hand = Hand(trainer)
    run(trainer)
    for step, (real, z) in enumerate(batches()):
        if step % d_period == 0:
            hand.update(real, z, "discrim")
        if step % g_period == 0:
            hand.update(real, z, "gen")
    hand.check(trainer)


@pytest.mark.parametrize(
    "make, kind",
    [
        (GANTrainer, "keras"),
        (lambda *args, **options: SeparateGANTrainer(*args, g_period=3, **options), "v1"),
        (lambda *args, **options: SeparateGANTrainer(*args, d_period=2, **options), "accumulated"),
    ],
    ids=["together", "g_period", "d_period"],
)
def test_fused_steps_equal_single_ones_bit_for_bit(make, kind):
    weights = []
    for callbacks in ([], [WatchesAll()]):
        tf.random.set_seed(1)
        trainer = make(QueueInput(data()), Game(OPTIMIZERS[kind]), jit=False, steps_per_call=5)
        run(trainer, callbacks=callbacks)
        assert trainer.global_step == STEPS
        weights.append({name: var.numpy() for name, var in trainer.store.saved().items()})
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        np.testing.assert_array_equal(value, weights[1][name], err_msg=name)


@pytest.mark.slow  # XLA takes its time to compile
def test_compiled_steps_equal_single_ones_to_rounding():
    weights = []
    for options in ({"jit": True}, {"jit": False, "steps_per_call": 1}):
        tf.random.set_seed(1)
        trainer = SeparateGANTrainer(QueueInput(data()), Game(), g_period=3, **options)
        run(trainer)
        weights.append(trainer.store["gen/a/W"].numpy())
    np.testing.assert_allclose(*weights, atol=1e-5)


def test_one_tower_on_a_chosen_device():
    trainer = MultiGPUGANTrainer([1], QueueInput(data()), Game(), jit=False)
    hand = Hand(trainer)
    run(trainer)
    for real, z in batches():
        hand.update(real, z, "gen", "discrim")
    hand.check(trainer)
    assert trainer.store["gen/a/W"].device.endswith("CPU:1")


def test_two_towers_train_like_one_of_the_double_batch():
    trainer = MultiGPUGANTrainer(2, QueueInput(data(BATCH // 2)), Game(), jit=False)
    hand = Hand(trainer)
    run(trainer)
    for real, z in batches():
        hand.update(real, z, "gen", "discrim")
    hand.check(trainer)


def test_each_network_counts_its_own_steps():
    trainer = SeparateGANTrainer(QueueInput(data()), Game(), g_period=3)
    run(trainer)
    powers = trainer.store["beta1_power"], trainer.store["beta1_power_1"]
    np.testing.assert_allclose(powers, [0.5 ** (STEPS + 1), 0.5 ** (3 + 1)], rtol=1e-6)


@pytest.mark.parametrize("make", [GANTrainer, SeparateGANTrainer])
def test_callbacks_fetch_losses_and_pictures_and_averages_are_logged(make):
    seen = []

    class Fetches(Callback):
        def _before_run(self):
            return ["GAN_loss/gen/loss", "GAN_loss/discrim/loss", "fake"]

        def _after_run(self, values):
            seen.append([values[0].shape, values[1].shape, values[2].shape])

    trainer = make(QueueInput(data()), Game())
    run(trainer, callbacks=[Fetches()])
    assert seen == [[(), (), (BATCH, 3)]] * STEPS
    names = {"gen/loss", "discrim/loss", "gen/accuracy", "discrim/accuracy"}
    assert set(trainer.moving_averages) == {f"GAN_loss/{name}" for name in names}


def test_a_generator_is_used_through_a_predictor():
    trainer = GANTrainer(QueueInput(data()), Game())
    (fake,) = trainer.get_predictor(["z"], ["fake"])(np.zeros([4, 2], np.float32))
    assert fake.shape == [4, 3]


class Averaged(Game):
    """The generator normalizes ones, so that its average after n updates is 1 - 0.5^n."""

    def __init__(self, kind):
        super().__init__()
        self.layer = tf.keras.layers.BatchNormalization(momentum=0.5, name="bn")
        self.kind = kind

    def build_graph(self, real, z):
        ones = tf.ones_like(z)
        with v1.variable_scope("gen"):
            if self.kind == "keras":
                z = z + self.layer(ones)
            else:
                z = z + BatchNorm("bn", ones, momentum=0.5)
        super().build_graph(real, z)


@pytest.mark.parametrize("kind", ["towerpack", "keras"])
@pytest.mark.parametrize("periods", [(1, 1), (1, 3), (2, 1)])
def test_separate_updates_move_averages_once_a_step(kind, periods):
    trainer = SeparateGANTrainer(QueueInput(data()), Averaged(kind), *periods, jit=False)
    run(trainer)
    (name,) = (name for name in trainer.store.variables if "mean" in name and "bn" in name)
    np.testing.assert_allclose(trainer.store[name].numpy(), 1 - 0.5**STEPS, rtol=1e-6)


class KerasGame(Game):
    """The networks are Keras models, made outside of the tower function."""

    def __init__(self):
        super().__init__(OPTIMIZERS["keras"])
        layers = tf.keras.layers
        self.g = tf.keras.Sequential([layers.Input([2]), layers.Dense(4, "tanh"), layers.Dense(3)])
        self.d = tf.keras.Sequential([layers.Input([3]), layers.Dense(5, "tanh"), layers.Dense(1)])

    def build_graph(self, real, z):
        self.build_losses(self.d(real), self.d(self.g(z)))
        self.collect_variables(self.g.trainable_variables, self.d.trainable_variables)


def test_keras_models_as_networks():
    model = KerasGame()
    before = [w.copy() for w in model.g.get_weights() + model.d.get_weights()]
    trainer = GANTrainer(QueueInput(data()), model)
    run(trainer)
    after = model.g.get_weights() + model.d.get_weights()
    assert all(np.any(x != y) for x, y in zip(before, after, strict=True))
    assert len(trainer.store.trainable()) == len(before)


class TwoRates(Game):
    def d_optimizer(self):
        return optimizer.SGD(0.0)


def test_each_network_may_have_an_optimizer_of_its_own():
    trainer = GANTrainer(QueueInput(data()), TwoRates())
    before = {name: trainer.store[name].numpy() for name in NAMES}
    run(trainer)
    np.testing.assert_allclose(trainer.store["learning_rate"], 0)
    np.testing.assert_allclose(trainer.store["learning_rate_1"], 0.05)
    changed = {name for name in NAMES if np.any(before[name] != trainer.store[name].numpy())}
    assert changed == {name for name in NAMES if name.startswith("gen")}


def test_scopes_are_whole_names_and_patterns_are_patterns():
    class Chosen(Game):
        def build_graph(self, real, z):
            super().build_graph(real, z)
            self.collect_variables(re.compile("gen/.*/W"), "discrim/")

    trainer = GANTrainer(QueueInput(data()), Chosen())
    assert [v.name for v in trainer.model.g_vars] == ["gen/a/W:0", "gen/b/W:0"]
    assert len(trainer.model.d_vars) == 4
    trainer.close()


def test_what_is_missing_or_doubled_is_said():
    class Empty(Game):
        def build_graph(self, real, z):
            super().build_graph(real, z)
            self.collect_variables("ge", "discrim")

    class Common(Game):
        def build_graph(self, real, z):
            super().build_graph(real, z)
            self.collect_variables("gen|discrim/a", "discrim")

    class NoLoss(Game):
        def build_graph(self, real, z):
            super().build_graph(real, z)
            self.g_loss = None

    shared = OPTIMIZERS["keras"]()
    for model, words in [
        (Empty(), r"no trainable variable is in the scope 'ge'; there are \['gen/a/W'"),
        (Common(), r"without a common variable, received \['discrim/a/W:0'"),
        (NoLoss(), "expected build_graph of NoLoss to set g_loss"),
        (Game(lambda: shared), "same optimizer object"),
    ]:
        with pytest.raises(ValueError, match=words):
            GANTrainer(QueueInput(data()), model)
    with pytest.raises(ValueError, match="one of them to be 1"):
        SeparateGANTrainer(QueueInput(data()), Game(), d_period=2, g_period=3)
    with pytest.raises(TypeError, match="expected a GANModelDesc"):
        GANTrainer(QueueInput(data()), object())


def test_a_run_step_of_the_users_own_runs_every_step():
    seen = []

    class Twice(GANTrainer):
        """Trains each step on two batches."""

        def run_step(self):
            seen.append(self.local_step)
            self.step()
            super().run_step()

    trainer = Twice(QueueInput(data()), Game())
    run(trainer, steps=3)
    assert int(trainer.store["global_step"]) == 6
    assert seen == [0, 1, 2]
    assert issubclass(Twice, TowerTrainer)


def test_a_resumed_run_equals_one_that_was_not_interrupted():
    def train(name, max_epoch, seed=1, **options):
        tf.random.set_seed(seed)
        logger.set_logger_dir(name, "k")
        with SeparateGANTrainer(QueueInput(data()), Game(), g_period=3, **options) as trainer:
            trainer.train([ModelSaver()], [], steps_per_epoch=4, max_epoch=max_epoch)
        logger.close_log_file()
        return {name: variable.numpy() for name, variable in trainer.store.saved().items()}

    whole = train("whole", 2)
    train("parts", 1)
    parts = train("parts", 2, seed=2, resume="auto")
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, parts[name], err_msg=name)

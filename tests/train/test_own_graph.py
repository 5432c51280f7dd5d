"""A trainer with a graph of its own gets our callbacks, checkpoints and monitors."""

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.callbacks import (
    MinSaver,
    ModelSaver,
    ScheduledHyperParamSetter,
    StopAt,
)
from towerpack.checkpoint import get_all_checkpoints, load_checkpoint_vars
from towerpack.core import logger
from towerpack.tower.keras_layers import fresh_layer_names
from towerpack.train import NoOpTrainer, Trainer

keras = tf.keras
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
STEPS = 5


@pytest.fixture(autouse=True)
def directory(tmp_path):
    logger.set_logger_dir(tmp_path / "run")
    yield tmp_path / "run"
    logger.close_log_file()


class Own(Trainer):
    """Plain gradient descent; `values` has the cost of each step."""

    def __init__(self):
        super().__init__()
        self.costs = []

    def batch(self):
        first = self.global_step % 4 * 10
        return X[first : first + 10], Y[first : first + 10]

    def run_step(self):
        self.costs.append(float(self.update(*map(tf.constant, self.batch()))))
        self.monitors.put_scalar("cost", self.costs[-1])


class PlainVariables(Own):
    def __init__(self):
        super().__init__()
        self.weights = {"w": tf.Variable(tf.zeros([3, 1])), "b": [tf.Variable([0.0])]}
        self.learning_rate = tf.Variable(0.1, trainable=False)

    @tf.function
    def update(self, x, y):
        w, (b,) = self.weights["w"], self.weights["b"]
        with tf.GradientTape() as tape:
            cost = tf.reduce_mean(tf.square(x @ w + b - y))
        for variable, gradient in zip([w, b], tape.gradient(cost, [w, b]), strict=True):
            variable.assign_sub(self.learning_rate * gradient)
        return cost


class KerasObjects(Own):
    def __init__(self, builds=True):
        super().__init__()
        with fresh_layer_names():  # as in a new process
            tf.keras.utils.set_random_seed(1)
            self.model = keras.Sequential(
                [keras.Input([3]), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
            )
            self.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
            if builds:
                self.optimizer.build(self.model.trainable_variables)

    def update(self, x, y):
        with tf.GradientTape() as tape:
            cost = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
        weights = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(cost, weights), weights)
        return cost


class CompiledModel(Own):
    def __init__(self):
        super().__init__()
        with fresh_layer_names():
            tf.keras.utils.set_random_seed(1)
            self.net = tf.Module()
            self.net.model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
            self.net.model.compile(keras.optimizers.Adam(0.1), "mse")
            self.net.model.optimizer.build(self.net.model.trainable_variables)

    def update(self, x, y):
        return self.net.model.train_on_batch(x.numpy(), y.numpy())


KINDS = [PlainVariables, KerasObjects, CompiledModel]
NAMES = {
    PlainVariables: {"weights/w", "weights/b/0", "learning_rate"},
    KerasObjects: {
        *(f"model/{layer}/{kind}" for layer in ("dense", "dense_1") for kind in ("kernel", "bias")),
        "optimizer/iteration",
        "optimizer/learning_rate",
        *(
            f"optimizer/sequential_{layer}_{kind}_momentum"
            for layer in ("dense", "dense_1")
            for kind in ("kernel", "bias")
        ),
    },
    CompiledModel: {
        "net/model/dense/kernel",
        "net/model/dense/bias",
        "net/model/optimizer/iteration",
        "net/model/optimizer/learning_rate",
        *(
            f"net/model/optimizer/sequential_dense_{kind}_{slot}"
            for kind in ("kernel", "bias")
            for slot in ("momentum", "velocity")
        ),
    },
}


def schedule():
    return ScheduledHyperParamSetter("learning_rate", [(0, 0.05), (1, 0.02), (2, 0.01)])


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_hold_all_variables_and_resume_continues_exactly(kind, directory):
    whole, first, second = kind(), kind(), kind()
    whole.train_with_defaults(callbacks=[schedule()], steps_per_epoch=STEPS, max_epoch=3)
    cut = [schedule(), ModelSaver(), StopAt("7 steps")]
    first.train_with_defaults(callbacks=cut, steps_per_epoch=STEPS, max_epoch=3)
    assert first.global_step == 7
    saved = load_checkpoint_vars(get_all_checkpoints(directory)[-1])
    assert set(saved) == NAMES[kind]
    second.train_with_defaults(
        callbacks=[schedule(), ModelSaver()], steps_per_epoch=STEPS, max_epoch=3, resume="auto"
    )
    assert (second.starting_epoch, second.global_step) == (2, 15)
    assert [*first.costs, *second.costs] == whole.costs
    for name, variable in whole.store.variables.items():
        np.testing.assert_array_equal(second.store[name], variable, err_msg=name)
    history = dict(second.monitors.get_history("cost"))
    assert [history[step] for step in range(1, 16)] == whole.costs
    kind().train_with_defaults(steps_per_epoch=STEPS, max_epoch=3, resume="auto")  # is finished


def test_a_plain_loop_gives_the_same_weights():
    trainer = PlainVariables()
    trainer.train_with_defaults(callbacks=[schedule()], steps_per_epoch=STEPS, max_epoch=3)
    w, b = np.zeros([3, 1], np.float32), np.zeros([1], np.float32)
    for step in range(15):
        x, y = X[step % 4 * 10 :][:10], Y[step % 4 * 10 :][:10]
        error = 2 * (x @ w + b - y) / len(x)
        rate = [0.05, 0.02, 0.01][step // STEPS]
        w, b = w - rate * x.T @ error, b - rate * error.sum(0)
    np.testing.assert_allclose(trainer.weights["w"], w, atol=1e-6)
    np.testing.assert_allclose(trainer.weights["b"][0], b, atol=1e-6)


@pytest.mark.parametrize("saver", [ModelSaver(), MinSaver("cost")], ids=str)
def test_a_saver_that_finds_nothing_to_save_raises(saver, directory):
    with pytest.raises(ValueError, match="found no variables to save in NoOpTrainer"):
        NoOpTrainer().train_with_defaults(callbacks=[saver], steps_per_epoch=1, max_epoch=1)
    assert get_all_checkpoints(directory) == []


def test_a_keras_object_without_variables_is_refused():
    with pytest.raises(ValueError, match=r"optimizer \(SGD\), whose variables do not exist yet"):
        KerasObjects(builds=False).train_with_defaults(
            callbacks=[ModelSaver()], steps_per_epoch=1, max_epoch=1
        )
    # Without a saver there is no need for them.
    KerasObjects(builds=False).train_with_defaults(steps_per_epoch=1, max_epoch=1)


def test_a_variable_that_appears_during_training_is_refused():
    class Late(PlainVariables):
        def run_step(self):
            self.late = tf.Variable(1.0)
            super().run_step()

    with pytest.raises(ValueError, match=r"\['late'\] appeared later"):
        Late().train_with_defaults(callbacks=[ModelSaver()], steps_per_epoch=1, max_epoch=1)


def test_every_kind_of_attribute_is_found_once():
    class Many(Trainer):
        def __init__(self):
            super().__init__()
            self.net = tf.Module()
            self.net.parts = [tf.Variable(1.0), {"inner": tf.Module()}]
            self.net.parts[1]["inner"].parent = self.net
            self.net.parts[1]["inner"].scale = keras.Variable(2.0)
            self.again = self.net.parts[0]
            self.seeds = keras.random.SeedGenerator(3)
            self.mean = keras.metrics.Mean()
            self.old = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
            with tf.GradientTape() as tape:
                cost = tf.square(self.again)
            self.old.apply_gradients([(tape.gradient(cost, self.again), self.again)])
            self.numbers = [1.0, 2, "x", None]

    trainer = Many()
    trainer.setup_callbacks([], [])
    assert sorted(trainer.store.variables) == [
        "mean/count",
        "mean/total",
        "net/parts/0",
        "net/parts/1/inner/scale",
        "old/Variable/Momentum",
        "seeds/state",
    ]

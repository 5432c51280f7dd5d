"""Small models that ranks train in `equality_script`; each adds one thing to the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack import optimizer
from towerpack._tensorflow import tf, v1
from towerpack.models import BatchNorm, Dropout, FullyConnected, ModelDesc
from towerpack.tower import add_moving_summary, get_current_tower_context
from towerpack.train import GANModelDesc, Objective, TowerTrainer

FEATURES = 6


class Model(ModelDesc):
    """A small network; subclasses add one thing to it."""

    make_optimizer: Callable[[], Any] = staticmethod(lambda: optimizer.SGD(0.1))

    def inputs(self):
        return [
            tf.TensorSpec([None, FEATURES], tf.float32, "x"),
            tf.TensorSpec([None], tf.float32, "y"),
        ]

    def hidden(self, x):
        return FullyConnected("fc0", x, 8, activation=tf.nn.tanh)

    def build_graph(self, x, y):
        output = FullyConnected("fc1", self.hidden(x), 1)
        cost = tf.reduce_mean(tf.square(output[:, 0] - y), name="cost")
        add_moving_summary(cost)
        return cost

    def optimizer(self):
        return self.make_optimizer()


def with_optimizer(make: Callable[[], Any]) -> type[Model]:
    return type("WithOptimizer", (Model,), {"make_optimizer": staticmethod(make)})


class Normalized(Model):
    def hidden(self, x):
        return BatchNorm("bn1", super().hidden(BatchNorm("bn0", x, momentum=0.5)))


class Synchronized(Model):
    def hidden(self, x):
        x = BatchNorm("bn0", x, momentum=0.5, sync_statistics=True)
        return BatchNorm("bn1", super().hidden(x), sync_statistics=True)


class Dropped(Model):
    def hidden(self, x):
        return Dropout(super().hidden(x), rate=0.3)


class DroppedByKeras(Model):
    def hidden(self, x):
        return tf.keras.layers.Dropout(0.3, seed=3)(super().hidden(x), training=True)


class Stateful(Model):
    """Random operations that count their calls: ranks draw other numbers than towers."""

    def hidden(self, x):
        hidden = super().hidden(x)
        return hidden + 0.1 * tf.random.normal(tf.shape(hidden))


class Embedded(Model):
    def hidden(self, x):
        table = v1.get_variable("table", [50, 4], tf.float32, v1.random_normal_initializer())
        rows = tf.nn.embedding_lookup(table, tf.cast(tf.abs(x[:, :3]) * 20, tf.int32) % 50)
        return tf.concat([super().hidden(x), tf.reshape(rows, [-1, 12])], 1)


class Game(GANModelDesc):
    """Two small networks; the noise comes with the data."""

    def inputs(self):
        return [
            tf.TensorSpec([None, 3], tf.float32, "real"),
            tf.TensorSpec([None, 2], tf.float32, "z"),
        ]

    def build_graph(self, real, z):
        with v1.variable_scope("gen"):
            fake = FullyConnected("b", FullyConnected("a", z, 4, activation=tf.nn.tanh), 3)
        with v1.variable_scope("discrim", reuse=v1.AUTO_REUSE):
            real_logits, fake_logits = (
                FullyConnected("b", FullyConnected("a", x, 5, activation=tf.nn.tanh), 1)
                for x in (real, fake)
            )
        self.build_losses(real_logits, fake_logits)
        self.collect_variables()

    def optimizer(self):
        return optimizer.Adam(0.05, beta1=0.5)


class TwoObjectives(TowerTrainer):
    """Objectives of a user's own: two costs of one tower, each with its own weights."""

    persistent_tape = True

    def setup(self, input):
        self.kinds = [optimizer.SGD(0.1), optimizer.Momentum(0.05, 0.9)]
        self.setup_towers(Model().inputs(), input, self.costs)

    def costs(self, x, y):
        cost = Model().build_graph(x, y)
        store = get_current_tower_context().store
        return cost + 0.1 * tf.nn.l2_loss(store["fc0/W"]), 2 * cost

    def optimizers_of(self, index):
        return self.kinds

    def objectives(self, tower):
        weights = tower.context.store.trainable()
        return [
            Objective(cost, [v for n, v in weights.items() if n.startswith(layer)], kind)
            for cost, layer, kind in zip(tower.output, ["fc0", "fc1"], self.kinds, strict=True)
        ]

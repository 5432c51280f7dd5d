import numpy as np
import pytest

from tests.train.test_multi_gpu import OPTIMIZERS, SYNCHRONOUS, Model, assert_close, trained
from towerpack import optimizer
from towerpack._tensorflow import tf
from towerpack.dataflow import DataFromArrays
from towerpack.models import BatchNorm, FullyConnected, layer_register
from towerpack.tower import gradproc
from towerpack.train import SimpleTrainer, SyncMultiGPUTrainer, SyncMultiGPUTrainerReplicated


@pytest.mark.parametrize("kind", ["fused", "v1 momentum", "keras adam"])
def test_scaling_the_cost_changes_nothing(kind):
    scaled = trained(SimpleTrainer(loss_scale="dynamic"), 16, Model(OPTIMIZERS[kind]))
    assert_close(scaled, trained(SimpleTrainer(), 16, Model(OPTIMIZERS[kind])))


@pytest.mark.parametrize("make", [SyncMultiGPUTrainer, SyncMultiGPUTrainerReplicated])
def test_two_towers_with_loss_scaling_equal_one_of_twice_the_batch(make):
    towers = trained(make(2, loss_scale="dynamic"), 8)
    assert_close(towers, trained(SimpleTrainer(loss_scale="dynamic"), 16))


class Overflowing(Model):
    def build_graph(self, x, y):
        cost = super().build_graph(x, y)
        return cost + 0.0 * tf.reduce_sum(tf.stop_gradient(x)) + self.hidden(x)

    def hidden(self, x):
        """Its gradient is 1e35, times the scale too much for float32; its value is zero."""
        big = FullyConnected("big", x, 1, kernel_initializer=tf.zeros_initializer())
        return 1e35 * tf.reduce_mean(big)


def test_a_step_that_overflows_is_left_out_and_halves_the_scale():
    trainer = SimpleTrainer(loss_scale="dynamic")
    weights = trained(trainer, 16, Overflowing(), steps=4)
    assert trainer.store["loss_scale"].numpy() == 2.0**11
    np.testing.assert_array_equal(weights["big/W"], 0)


HALF = ["bfloat16", "float16"]


@pytest.mark.parametrize("precision", HALF)
def test_layers_compute_in_half_precision_and_variables_are_float32(precision):
    kinds = set()

    class Normalized(Model):
        def build_graph(self, x, y):
            hidden = BatchNorm("bn", FullyConnected("fc0", x, 8))
            cost = tf.reduce_mean(tf.square(FullyConnected("fc1", tf.nn.tanh(hidden), 1)[:, 0] - y))
            products = [op for op in cost.graph.get_operations() if op.type == "MatMul"]
            kinds.update(op.outputs[0].dtype.name for op in products)
            return cost

    half = trained(SimpleTrainer(precision=precision), 16, Normalized())
    assert kinds == {precision}
    assert {value.dtype.name for value in half.values()} == {"float32"}
    assert_close(half, trained(SimpleTrainer(), 16, Normalized()), tolerance=0.1)


@pytest.mark.parametrize("precision", HALF)
def test_half_precision_does_not_round_targets(precision):
    """The constant that is nearest to targets of 1000.25 and 1001.25, which half would round."""

    class Constant(Model):
        def build_graph(self, x, y):
            assert x.dtype == y.dtype == tf.float32
            level = tf.compat.v1.get_variable("level", [], initializer=tf.zeros_initializer())
            zero = 0.0 * FullyConnected("fc", x, 1)[:, 0]
            labels = tf.cast(tf.cast(y, tf.int32), tf.float32) + 0.25  # float32 by a cast, too
            return tf.reduce_mean(tf.square(zero + level - y)) + tf.reduce_mean(labels - y)

    y = np.tile(np.float32([1000.25, 1001.25]), 48)
    flow = DataFromArrays(np.ones((96, 6), np.float32), y, shuffle=False)
    model = Constant(lambda: optimizer.SGD(0.5))
    weights = trained(SimpleTrainer(precision=precision), 16, model, flow=flow)
    np.testing.assert_allclose(weights["level"], 1000.75, rtol=1e-6)


def test_a_layer_of_the_users_own_computes_in_float32():
    @layer_register()
    def Shifted(x):
        assert x.dtype == tf.float32
        shift = tf.compat.v1.get_variable("shift", [], initializer=tf.zeros_initializer())
        return FullyConnected("fc", x + shift, 1)

    class Own(Model):
        def build_graph(self, x, y):
            return tf.reduce_mean(tf.square(Shifted("own", x)[:, 0] - y))

    weights = trained(SimpleTrainer(precision="bfloat16"), 16, Own(lambda: optimizer.SGD(0.01)))
    assert set(weights) == {"own/shift", "own/fc/W", "own/fc/b"}


@pytest.mark.parametrize("kind", ["shared", "replicated"])
def test_float16_on_two_towers_is_near_one_of_twice_the_batch(kind):
    make = {"shared": SyncMultiGPUTrainer, "replicated": SyncMultiGPUTrainerReplicated}[kind]
    assert kind in SYNCHRONOUS
    towers = trained(make(2, precision="float16"), 8)
    assert_close(towers, trained(SimpleTrainer(precision="float16"), 16), tolerance=0.01)


def keras_sgd(**options):
    return tf.keras.optimizers.SGD(0.1, momentum=0.9, **options)


LOSS_SCALES = {
    "LossScaleOptimizer": lambda: tf.keras.optimizers.LossScaleOptimizer(keras_sgd()),
    "loss_scale_factor": lambda: keras_sgd(loss_scale_factor=1024.0),
}


@pytest.mark.parametrize("kind", LOSS_SCALES)
@pytest.mark.parametrize(
    "make",
    [
        lambda: (SimpleTrainer(), 16),
        lambda: (SimpleTrainer(loss_scale="dynamic"), 16),
        lambda: (SyncMultiGPUTrainer(2), 8),
        lambda: (SyncMultiGPUTrainerReplicated(2), 8),
    ],
    ids=["one", "one with a loss scale of its own", "shared", "replicated"],
)
def test_B7_a_loss_scale_of_keras_scales_the_loss(kind, make):
    """Gradients were divided by the scale, but the loss was not multiplied by it."""
    scaled = trained(*make(), Model(LOSS_SCALES[kind]))
    assert_close(scaled, trained(SimpleTrainer(), 16, Model(keras_sgd)))


def test_gradient_processors_see_gradients_without_the_loss_scale_of_keras():
    def clipped(opt):
        return optimizer.apply_grad_processors(opt, [gradproc.GlobalNormClip(0.5)])

    def accumulated(opt):
        return optimizer.AccumGradOptimizer(clipped(opt), 2)

    with_scale = Model(lambda: accumulated(LOSS_SCALES["LossScaleOptimizer"]()))
    without = Model(lambda: accumulated(keras_sgd()))
    assert_close(trained(SimpleTrainer(), 16, with_scale), trained(SimpleTrainer(), 16, without))


@pytest.mark.parametrize("towers", [1, 2])
def test_a_keras_loss_scale_halves_when_a_gradient_overflows(towers):
    made = []

    def make():
        made.append(tf.keras.optimizers.LossScaleOptimizer(keras_sgd()))
        return made[-1]

    trainer = SimpleTrainer() if towers == 1 else SyncMultiGPUTrainer(2)
    weights = trained(trainer, 16, Overflowing(make), steps=4)
    assert made[0].dynamic_scale.numpy() == 2.0**11
    assert made[0].iterations.numpy() == 0
    np.testing.assert_array_equal(weights["big/W"], 0)


def test_wrong_precisions_are_refused():
    with pytest.raises(ValueError, match="received 'float8'"):
        SimpleTrainer(precision="float8")
    with pytest.raises(ValueError, match="received 'high'"):
        SimpleTrainer(loss_scale="high")

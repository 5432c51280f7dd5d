import numpy as np
import pytest

from tests.train.test_multi_gpu import OPTIMIZERS, SYNCHRONOUS, Model, assert_close, trained
from towerpack._tensorflow import tf
from towerpack.models import BatchNorm, FullyConnected
from towerpack.train import SimpleTrainer, SyncMultiGPUTrainer, SyncMultiGPUTrainerReplicated


@pytest.mark.parametrize("optimizer", ["fused", "v1 momentum", "keras adam"])
def test_scaling_the_cost_changes_nothing(optimizer):
    scaled = trained(SimpleTrainer(loss_scale="dynamic"), 16, Model(OPTIMIZERS[optimizer]))
    assert_close(scaled, trained(SimpleTrainer(), 16, Model(OPTIMIZERS[optimizer])))


@pytest.mark.parametrize("make", [SyncMultiGPUTrainer, SyncMultiGPUTrainerReplicated])
def test_two_towers_with_loss_scaling_equal_one_of_twice_the_batch(make):
    towers = trained(make(2, loss_scale="dynamic"), 8)
    assert_close(towers, trained(SimpleTrainer(loss_scale="dynamic"), 16))


def test_a_step_that_overflows_is_left_out_and_halves_the_scale():
    class Overflowing(Model):
        def build_graph(self, x, y):
            cost = super().build_graph(x, y)
            return cost + 0.0 * tf.reduce_sum(tf.stop_gradient(x)) + self.hidden(x)

        def hidden(self, x):
            """Its gradient is 1e35, times the scale too much for float32; its value is zero."""
            big = FullyConnected("big", x, 1, kernel_initializer=tf.zeros_initializer())
            return 1e35 * tf.reduce_mean(big)

    trainer = SimpleTrainer(loss_scale="dynamic")
    weights = trained(trainer, 16, Overflowing(), steps=4)
    assert trainer.store["loss_scale"].numpy() == 2.0**11
    np.testing.assert_array_equal(weights["big/W"], 0)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_variables_of_float32(precision):
    class Normalized(Model):
        def build_graph(self, x, y):
            self.computed_in = x.dtype.name
            hidden = BatchNorm("bn", FullyConnected("fc0", x, 8))
            output = FullyConnected("fc1", tf.nn.tanh(hidden), 1)
            return tf.reduce_mean(
                tf.square(tf.cast(output[:, 0], tf.float32) - tf.cast(y, "float32"))
            )

    model = Normalized()
    half = trained(SimpleTrainer(precision=precision), 16, model)
    assert model.computed_in == precision
    assert {value.dtype.name for value in half.values()} == {"float32"}
    assert_close(half, trained(SimpleTrainer(), 16, Normalized()), tolerance=0.1)


@pytest.mark.parametrize("kind", ["shared", "replicated"])
def test_float16_on_two_towers_is_near_one_of_twice_the_batch(kind):
    make = {"shared": SyncMultiGPUTrainer, "replicated": SyncMultiGPUTrainerReplicated}[kind]
    assert kind in SYNCHRONOUS
    towers = trained(make(2, precision="float16"), 8)
    assert_close(towers, trained(SimpleTrainer(precision="float16"), 16), tolerance=0.01)


def test_wrong_precisions_are_refused():
    with pytest.raises(ValueError, match="received 'float8'"):
        SimpleTrainer(precision="float8")
    with pytest.raises(ValueError, match="received 'high'"):
        SimpleTrainer(loss_scale="high")

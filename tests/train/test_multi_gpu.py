"""N towers of batch B train like one tower of batch N x B."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from towerpack import optimizer
from towerpack._tensorflow import tf
from towerpack.callbacks import ScheduledHyperParamSetter
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import QueueInput, StagingInput
from towerpack.models import BatchNorm, FullyConnected, ModelDesc
from towerpack.tower import get_current_tower_context, gradproc
from towerpack.train import (
    AsyncMultiGPUTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated,
    TrainConfig,
    launch_train_with_config,
)

SYNCHRONOUS = {
    "shared on the cpu": partial(SyncMultiGPUTrainer, 2),
    "shared": partial(SyncMultiGPUTrainerParameterServer, 2),
    "replicated": partial(SyncMultiGPUTrainerReplicated, 2),
    "replicated, hierarchical": partial(SyncMultiGPUTrainerReplicated, 2, mode="hierarchical"),
    "replicated, one device": partial(SyncMultiGPUTrainerReplicated, [0, 1], mode="gpu"),
}
OPTIMIZERS = {
    "fused": lambda: optimizer.SGD(0.1),
    "v1 momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    "keras adam": lambda: tf.keras.optimizers.Adam(0.01),
    "clipped": lambda: optimizer.apply_grad_processors(
        optimizer.SGD(0.1), [gradproc.GlobalNormClip(0.5)]
    ),
    "accumulated": lambda: optimizer.AccumGradOptimizer(optimizer.SGD(0.1), 3),
}


class Model(ModelDesc):
    def __init__(self, optimizer=OPTIMIZERS["fused"]):
        super().__init__()
        self.make_optimizer = optimizer

    def inputs(self):
        return [tf.TensorSpec([None, 6], tf.float32, "x"), tf.TensorSpec([None], tf.float32, "y")]

    def build_graph(self, x, y):
        hidden = FullyConnected("fc0", x, 8, activation=tf.nn.tanh)
        output = FullyConnected("fc1", hidden, 1)
        return tf.reduce_mean(tf.square(output[:, 0] - y), name="cost")

    def optimizer(self):
        return self.make_optimizer()


def data(count=96):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 6)).astype(np.float32)
    return DataFromArrays(x, x.sum(1), shuffle=False)


def trained(trainer, batch, model=None, steps=20, **config):
    tf.keras.utils.set_random_seed(7)
    launch_train_with_config(
        TrainConfig(
            model=model or Model(),
            dataflow=BatchData(config.pop("flow", None) or data(), batch, remainder=True),
            steps_per_epoch=steps // 2,
            max_epoch=2,
            extra_callbacks=[],
            monitors=[],
            **config,
        ),
        trainer,
    )
    return {name: v.numpy() for name, v in trainer.store.trainable().items()}


def assert_close(one, other, tolerance=1e-5):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=tolerance, rtol=0, err_msg=name)


@pytest.mark.parametrize("kind", SYNCHRONOUS)
def test_two_towers_equal_one_of_twice_the_batch(kind):
    assert_close(trained(SYNCHRONOUS[kind](), 8), trained(SimpleTrainer(), 16))


@pytest.mark.parametrize("kind", ["shared", "replicated"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_with_every_kind_of_optimizer(kind, optimizer):
    model = Model(OPTIMIZERS[optimizer])
    assert_close(
        trained(SYNCHRONOUS[kind](), 8, model),
        trained(SimpleTrainer(), 16, Model(OPTIMIZERS[optimizer])),
    )


@pytest.mark.parametrize("kind", ["shared", "replicated"])
def test_with_uneven_last_batches(kind):
    """88 datapoints: the fifth pair of towers gets 16 and 8, which counts as one batch of 24."""
    towers = trained(SYNCHRONOUS[kind](), 16, flow=data(88), steps=12)
    assert_close(towers, trained(SimpleTrainer(), 32, flow=data(88), steps=12))


@pytest.mark.parametrize("kind", ["shared", "replicated"])
def test_fused_steps_equal_single_ones(kind):
    one, many = SYNCHRONOUS[kind](steps_per_call=1), SYNCHRONOUS[kind](steps_per_call=7)
    assert_close(trained(one, 8), trained(many, 8), tolerance=0)


@pytest.mark.parametrize("kind", SYNCHRONOUS)
def test_eager_steps_equal_traced_ones(kind):
    assert_close(trained(SYNCHRONOUS[kind](eager=True), 8), trained(SYNCHRONOUS[kind](), 8))


def test_replicated_towers_keep_equal_copies_on_their_devices():
    trainer = SyncMultiGPUTrainerReplicated(2)
    trained(trainer, 8)
    main, copy = trainer.stores
    assert main["fc0/W"].device != copy["fc0/W"].device
    for name, variable in main.trainable().items():
        assert copy[name] is not variable
        np.testing.assert_array_equal(copy[name].numpy(), variable.numpy())


def test_a_learning_rate_set_between_calls_reaches_every_tower():
    schedule = [(1, 0.02)]
    results = [
        trained(trainer, batch, callbacks=[ScheduledHyperParamSetter("learning_rate", schedule)])
        for trainer, batch in [(SyncMultiGPUTrainerReplicated(2), 8), (SimpleTrainer(), 16)]
    ]
    assert_close(*results)


def test_only_the_first_of_sharing_towers_updates_moving_averages():
    class Normalized(Model):
        def build_graph(self, x, y):
            return super().build_graph(BatchNorm("bn", x, momentum=0.5), y)

    shared, replicated = SyncMultiGPUTrainer(2), SyncMultiGPUTrainerReplicated(2)
    for trainer in (shared, replicated):
        trained(trainer, 8, Normalized(), steps=2)
    np.testing.assert_allclose(
        shared.store["bn/mean/EMA"].numpy(), replicated.store["bn/mean/EMA"].numpy(), atol=1e-5
    )


def test_synchronized_batch_norm_equals_one_tower_of_twice_the_batch():
    class Normalized(Model):
        def build_graph(self, x, y):
            return super().build_graph(BatchNorm("bn", x, sync_statistics=True), y)

    for kind in ("shared", "replicated"):
        towers = trained(SYNCHRONOUS[kind](), 8, Normalized())
        assert_close(towers, trained(SimpleTrainer(), 16, Normalized()))


@pytest.mark.parametrize("kind", ["shared", "replicated"])
def test_synchronized_batch_norm_does_not_cancel_where_the_mean_is_large(kind):
    class Normalized(Model):
        def build_graph(self, x, y):
            return super().build_graph(BatchNorm("bn", x, sync_statistics=True, momentum=0.5), y)

    x, y = (np.stack(column) for column in zip(*data(), strict=True))
    flow = DataFromArrays(x + 10_000, y, shuffle=False)
    towers, one = SYNCHRONOUS[kind](), SimpleTrainer()
    weights = trained(towers, 8, Normalized(), flow=flow)
    assert_close(weights, trained(one, 16, Normalized(), flow=flow), tolerance=1e-3)
    variances = [trainer.store["bn/variance/EMA"].numpy() for trainer in (towers, one)]
    np.testing.assert_allclose(*variances, rtol=1e-3)
    assert np.abs(variances[0] - 1).max() < 1


def test_towers_know_their_number():
    seen = set()

    class Asking(Model):
        def build_graph(self, x, y):
            context = get_current_tower_context()
            if context.is_training:
                seen.add((context.name, context.index, context.total))
            return super().build_graph(x, y)

    trained(SyncMultiGPUTrainer(2), 8, Asking(), steps=2)
    assert seen == {("", 0, 2), ("tower1", 1, 2)}


def test_a_keras_model_made_outside_is_refused_where_towers_own_their_variables():
    layer = tf.keras.layers.Dense(1)
    layer.build((None, 6))

    class Outside(Model):
        def build_graph(self, x, y):
            return tf.reduce_mean(tf.square(layer(x)[:, 0] - y))

    with pytest.raises(ValueError, match="SyncMultiGPUTrainerParameterServer"):
        trained(SyncMultiGPUTrainerReplicated(2), 8, Outside(), steps=2)
    one = trained(SyncMultiGPUTrainer(2), 8, Outside(), steps=2)
    assert np.isfinite(next(iter(one.values()))).all()


@pytest.mark.parametrize(
    "options", [{}, {"jit": False}, {"steps_per_call": 7}, {"eager": True}, {"steps_per_call": 1}]
)
def test_asynchronous_towers_learn_and_take_every_batch_once(options):
    class Counting(Model):
        def build_graph(self, x, y):
            rows = tf.compat.v1.get_variable(
                "rows", [], initializer=tf.zeros_initializer(), trainable=False
            )
            if get_current_tower_context().is_training:
                rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
            return super().build_graph(x, y)

    trainer = AsyncMultiGPUTrainer(2, **options)
    before = trained(SimpleTrainer(), 16, steps=2)
    after = trained(trainer, 8, Counting(), steps=60)
    assert trainer.input_source.delivered == 2 * 60
    assert trainer.store["rows"].numpy() == 2 * 60 * 8
    assert trainer.global_step == int(trainer.store["global_step"].numpy()) == 60
    assert any(np.abs(after[name] - before[name]).max() > 0.01 for name in after)


@pytest.mark.parametrize("options", [{}, {"steps_per_call": 1}, {"eager": True}], ids=str)
@pytest.mark.parametrize("kind", [*SYNCHRONOUS, "asynchronous"])
def test_every_trainer_takes_staged_batches_each_once(kind, options):
    """As they are on GPUs, where batches are staged when nothing else is said."""
    make = {**SYNCHRONOUS, "asynchronous": partial(AsyncMultiGPUTrainer, 2)}[kind]
    seen = []

    class Recording(Model):
        def build_graph(self, x, y):
            if get_current_tower_context().is_training:
                tf.numpy_function(lambda y: seen.append(y.copy()), [y], [])
            return super().build_graph(x, y)

    tf.keras.utils.set_random_seed(7)
    launch_train_with_config(
        TrainConfig(
            model=Recording(),
            data=StagingInput(QueueInput(BatchData(data(), 8))),
            steps_per_epoch=6,
            max_epoch=2,
            monitors=[],
        ),
        make(**options),
    )
    expected = np.array([y for _, y in data()] * 2)
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.sort(expected))


def test_asynchronous_towers_run_as_many_steps_in_a_call_as_they_are_told():
    calls = []

    class Recording(AsyncMultiGPUTrainer):
        def run_steps(self, count):
            calls.append(super().run_steps(count))
            return calls[-1]

    trained(Recording(2, steps_per_call=7), 8)
    assert max(calls) == 7


@pytest.mark.parametrize("options", [{}, {"jit": True}], ids=str)
def test_one_asynchronous_tower_equals_a_simple_trainer(options):
    assert_close(trained(AsyncMultiGPUTrainer(1, **options), 16), trained(SimpleTrainer(), 16))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("gpus", [1, [1]], ids=str)
@pytest.mark.parametrize(
    "kind", [SyncMultiGPUTrainerReplicated, SyncMultiGPUTrainerParameterServer], ids=str
)
def test_one_synchronous_tower_equals_a_simple_trainer(kind, gpus, optimizer):
    """As scripts say: max(get_num_gpu(), 1)."""
    trainer = kind(gpus)
    one = trained(trainer, 16, Model(OPTIMIZERS[optimizer]), steps=6)
    assert_close(one, trained(SimpleTrainer(), 16, Model(OPTIMIZERS[optimizer]), steps=6))
    number = 0 if gpus == 1 else 1
    assert trainer.store["fc0/W"].device.endswith(f"CPU:{number}")


def test_devices_that_are_there_already_are_enough():
    """Without logical devices of the user's, TensorFlow has one CPU, also once it is in use."""
    code = (
        "from towerpack._tensorflow import tf; tf.zeros([1]).numpy()\n"
        "from towerpack.train.devices import tower_devices\n"
        "assert tower_devices(1) == ['/cpu:0']\n"
        "try: tower_devices(2)\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "expected 2 devices, received 1" in done.stdout


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="logical CPU devices could be made"):
        SyncMultiGPUTrainer(64)
    with pytest.raises(ValueError, match="nccl.*needs GPUs"):
        SyncMultiGPUTrainerReplicated(2, mode="nccl")
    with pytest.raises(ValueError, match="hierarchical.*received 'ring'"):
        SyncMultiGPUTrainerReplicated(2, mode="ring")


def test_a_predictor_on_a_chosen_device():
    trainer = SyncMultiGPUTrainer(2)
    trained(trainer, 8, steps=2)
    x = np.ones((3, 6), np.float32)
    outputs = {}
    for device in (None, -1, 0, 1):
        (output,) = trainer.get_predictor(["x"], ["fc1/output"], device)(x)
        outputs[device] = output.numpy()
    np.testing.assert_array_equal(outputs[1], outputs[None])
    np.testing.assert_array_equal(outputs[-1], outputs[None])
    with pytest.raises(ValueError, match="received 2"):
        trainer.get_predictor(["x"], ["fc1/output"], 2)


@pytest.mark.parametrize("count, steps", [(96, 6), (90, 5), (7, 1)])
def test_an_epoch_is_one_pass_over_the_data_by_default(caplog, count, steps):
    """`count` datapoints in batches of 8 for two towers: 12, 11 (one left over) and 1 batch."""
    logger.set_level("INFO")
    trainer = SyncMultiGPUTrainer(2)
    with caplog.at_level("INFO"):
        launch_train_with_config(
            TrainConfig(
                model=Model(),
                dataflow=BatchData(data(count), 8, remainder=count < 8),
                max_epoch=2,
                extra_callbacks=[],
                monitors=[],
            ),
            trainer,
        )
    assert trainer.steps_per_epoch == steps
    assert trainer.global_step == 2 * steps
    assert f"2 towers x 8 = 16, with {steps} steps per epoch" in caplog.text
    assert ("not a multiple" in caplog.text) == (count != 96)


def test_two_towers_equal_one_of_twice_the_batch_by_epochs():
    """`max_epoch` and a schedule by epochs mean the same on one and on two devices."""
    results = []
    for trainer, batch in [(SyncMultiGPUTrainer(2), 8), (SimpleTrainer(), 16)]:
        tf.keras.utils.set_random_seed(7)
        schedule = ScheduledHyperParamSetter("learning_rate", [(1, 0.02), (2, 0.05)])
        config = TrainConfig(
            model=Model(),
            dataflow=BatchData(data(), batch),
            callbacks=[schedule],
            max_epoch=3,
            extra_callbacks=[],
            monitors=[],
        )
        launch_train_with_config(config, trainer)
        results.append({name: v.numpy() for name, v in trainer.store.trainable().items()})
    assert_close(*results)

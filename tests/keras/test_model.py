"""Keras models trained by towerpack, beside the same trained by Keras."""

import numpy as np
import pytest

from towerpack import optimizer
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, ModelSaver
from towerpack.checkpoint import load_checkpoint_vars
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.keras import KerasModel, KerasTrainer, setup_keras_trainer
from towerpack.models import FullyConnected, ModelDesc
from towerpack.monitor import MonitorBase
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.train import (
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerReplicated,
    TrainConfig,
    launch_train_with_config,
)

keras = tf.keras

BATCH, SAMPLES = 8, 44  # the last batch is smaller
INPUTS = [tf.TensorSpec([None, 4], tf.float32, "x")]
TARGETS = [tf.TensorSpec([None], tf.int32, "label")]


def arrays():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1).astype(np.int32)


def flow(batch=BATCH):
    return BatchData(DataFromArrays(*arrays(), shuffle=False), batch, remainder=True)


def network(x):
    """With a regularizer and batch normalization, whose updates must run too."""
    hidden = keras.layers.Dense(6, "tanh", kernel_regularizer=keras.regularizers.L2(0.01))(x)
    return keras.layers.Dense(3)(keras.layers.BatchNormalization()(hidden))


def in_keras(weights, epochs, network=network, **options):
    """What Keras makes of the same model: its history and weights."""
    x = keras.Input([4])
    model = keras.Model(x, network(x))
    model.set_weights(weights)
    model.compile(**options)
    data = tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH)
    history = model.fit(data, epochs=epochs, verbose=0, shuffle=False, validation_data=data).history
    return history, model.get_weights()


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Scalars(MonitorBase):
    def __init__(self):
        self.values = {}

    def process_scalar(self, name, value, step, epoch):
        self.values.setdefault(name, []).append(value)


class Start(Callback):
    """Keeps the weights that training starts from."""

    def __init__(self, model):
        self.model = model

    def _setup_graph(self):
        self.weights = self.model.model.get_weights()


def test_training_validation_and_logs_equal_those_of_keras():
    scalars = Scalars()
    model = KerasModel(network, INPUTS, TARGETS, flow())
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss(), ["accuracy"])
    start = Start(model)
    model.fit(validation_data=flow(), max_epoch=3, monitors=[scalars], callbacks=[start])
    history, weights = in_keras(
        start.weights,
        3,
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=loss(),
        metrics=["accuracy"],
    )
    for ours, theirs in zip(model.model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for ours, theirs in {
        "total_loss": "loss",
        "accuracy": "accuracy",
        "validation_total_loss": "val_loss",
        "validation_accuracy": "val_accuracy",
    }.items():
        np.testing.assert_allclose(scalars.values[ours][-3:], history[theirs], atol=1e-5)


def test_metrics_are_no_part_of_a_checkpoint_and_the_model_predicts_from_it():
    directory = logger.set_logger_dir("run")
    model = KerasModel(network, INPUTS, TARGETS, flow())
    model.compile("adam", loss(), "accuracy")
    model.fit(max_epoch=2, callbacks=[ModelSaver()], monitors=[])
    logger.close_log_file()
    saved = load_checkpoint_vars(directory)
    assert {"dense/kernel", "batch_normalization/moving_mean", "adam/iteration"} <= set(saved)
    assert not [name for name in saved if "accuracy" in name or "total" in name]

    config = PredictConfig(
        tower_func=model.trainer.tower_func,
        input_names=["x"],
        output_names=["prediction"],
        session_init=directory,
    )
    x, _ = arrays()
    (prediction,) = OfflinePredictor(config)(x)
    np.testing.assert_allclose(prediction, model.model.predict(x, verbose=0), atol=1e-5)


@pytest.mark.parametrize("trainer", [SyncMultiGPUTrainer, SyncMultiGPUTrainerReplicated])
def test_two_towers_train_like_one_of_the_double_batch(trainer):
    def plain(x):
        return keras.layers.Dense(3)(keras.layers.Dense(6, "tanh")(x))

    weights = []
    for make, batch in ((SimpleTrainer, 8), (lambda: trainer(2), 4)):
        keras.utils.set_random_seed(3)
        model = KerasModel(plain, INPUTS, TARGETS, flow(batch), make())
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss(), ["accuracy"])
        model.fit(steps_per_epoch=5, max_epoch=1, monitors=[])
        weights.append(model.model.get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


class Twofold(keras.Model):
    """A step of its own: the gradient is doubled, and the loss is kept in a metric of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3)
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = self.compute_loss(x, y, self(x))
        gradients = tape.gradient(value, self.trainable_variables)
        self.optimizer.apply([2 * g for g in gradients], self.trainable_variables)
        self.mean.update_state(value, sample_weight=tf.shape(x)[0])
        return {"loss": self.mean.result()}

    def test_step(self, data):
        x, y = data
        self.mean.update_state(self.compute_loss(x, y, self(x)), sample_weight=tf.shape(x)[0])
        return {"loss": self.mean.result()}


def test_a_train_step_of_the_models_own_drops_in():
    scalars = Scalars()
    ours = KerasModel(Twofold, INPUTS, TARGETS, flow(), KerasTrainer(steps_per_call=4))
    ours.compile(keras.optimizers.Adam(0.05), loss())
    start = Start(ours)
    ours.fit(validation_data=flow(), max_epoch=2, monitors=[scalars], callbacks=[start])

    theirs = Twofold()
    theirs(np.zeros([1, 4], np.float32))
    theirs.set_weights(start.weights)
    theirs.compile(keras.optimizers.Adam(0.05), loss())
    data = tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH)
    history = theirs.fit(data, epochs=2, verbose=0, shuffle=False, validation_data=data).history
    for one, two in zip(ours.model.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    np.testing.assert_allclose(scalars.values["total_loss"], history["loss"], atol=1e-5)
    np.testing.assert_allclose(scalars.values["validation_total_loss"], history["val_loss"], 1e-5)


def test_a_compiled_keras_model_is_taken_as_it_is():
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(3)])
    model.compile("sgd", loss(), metrics=["accuracy"])
    before = model.get_weights()[0].copy()
    ours = KerasModel(model, INPUTS, TARGETS, flow())
    ours.fit(max_epoch=1, monitors=[])
    assert ours.model is model
    assert np.any(model.get_weights()[0] != before)
    assert float(model.evaluate(*arrays(), verbose=0)[1]) > 0


def test_several_inputs_and_outputs_in_the_old_way_of_setting_up():
    def both(a, b):
        together = keras.layers.Concatenate()([a, b])
        return [keras.layers.Dense(1, name="sum")(together), keras.layers.Dense(2, name="two")(a)]

    rng = np.random.default_rng(0)
    data = [rng.normal(size=(32, n)).astype(np.float32) for n in (2, 3, 1, 2)]
    specs = [
        tf.TensorSpec([None, x.shape[1]], tf.float32, name)
        for x, name in zip(data, "abcd", strict=True)
    ]
    trainer, scalars = SimpleTrainer(), Scalars()
    source = BatchData(DataFromArrays(*data), 8)
    with trainer:
        setup_keras_trainer(
            trainer, both, specs[:2], specs[2:], source, optimizer.SGD(0.1), ["mse", "mae"]
        )
        trainer.train_with_defaults(max_epoch=3, monitors=[scalars])
    assert len(scalars.values["total_loss"]) == 3
    assert scalars.values["total_loss"][2] < scalars.values["total_loss"][0]
    assert {"sum_loss", "two_loss"} <= set(scalars.values)


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match="call compile"):
        KerasModel(network, INPUTS, TARGETS, flow()).fit(max_epoch=1)
    own = KerasModel(Twofold, INPUTS, TARGETS, flow(), SimpleTrainer())
    own.compile("sgd", loss())
    with pytest.raises(ValueError, match="has a train_step of its own, which runs with KerasTr"):
        own.fit(max_epoch=1)
    made = KerasModel(keras_model(), INPUTS, TARGETS, flow(), SyncMultiGPUTrainerReplicated(2))
    made.compile("sgd", loss())
    with pytest.raises(ValueError, match="needs a model for each tower.*SyncMultiGPUTrainerParam"):
        made.fit(max_epoch=1)
    with pytest.raises(TypeError, match="trainer of a single cost"):
        KerasModel(network, INPUTS, TARGETS, flow(), object())


def test_a_resumed_run_equals_one_that_was_not_interrupted():
    def dropped(x):
        hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(6, "tanh")(x))
        return keras.layers.Dense(3)(hidden)

    def train(name, max_epoch, seed=1, **options):
        keras.utils.set_random_seed(seed)
        logger.set_logger_dir(name, "k")
        model = KerasModel(dropped, INPUTS, TARGETS, flow())
        model.compile("adam", loss(), ["accuracy"])
        model.fit(max_epoch=max_epoch, callbacks=[ModelSaver()], monitors=[], **options)
        logger.close_log_file()
        return model.model.get_weights()

    whole = train("whole", 2)
    train("parts", 1)
    parts = train("parts", 2, seed=2, resume="auto")
    for one, two in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, two)


def test_callbacks_of_keras_stand_beside_those_of_towerpack():
    model, scalars = KerasModel(network, INPUTS, TARGETS, flow()), Scalars()
    model.compile("adam", loss())
    stop = keras.callbacks.EarlyStopping("val_loss", mode="max", restore_best_weights=True)
    start = Start(model)
    model.fit(flow(), max_epoch=9, monitors=[scalars], callbacks=[stop, start])
    assert len(scalars.values["validation_total_loss"]) == 2
    best = model.model.evaluate(dataset(), verbose=0)
    np.testing.assert_allclose(best, scalars.values["validation_total_loss"][0], atol=1e-5)


def ema():
    return keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8)


OPTIMIZERS = {
    "by name": lambda: "adam",
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "use_ema": ema,
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02)),
    "LossScaleOptimizer of use_ema": lambda: keras.optimizers.LossScaleOptimizer(ema()),
}


def dataset():
    return tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH)


def keras_model():
    keras.utils.set_random_seed(5)
    x = keras.Input([4])
    return keras.Model(x, network(x))


# Keras 3.15 makes arrays of its variables in a way that NumPy 2 warns of, when it saves a model.
saves_by_keras = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@saves_by_keras
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_B7_keras_continues_where_fit_of_ours_ended_after_save_and_load(kind):
    model = keras_model()
    ours = KerasModel(model, INPUTS, TARGETS, flow())
    ours.compile(OPTIMIZERS[kind](), loss(), ["accuracy"])
    ours.fit(max_epoch=2, monitors=[])
    model.save("model.keras")
    loaded = keras.models.load_model("model.keras")
    history = loaded.fit(dataset(), verbose=0, shuffle=False).history

    theirs = keras_model()
    theirs.compile(OPTIMIZERS[kind](), loss(), metrics=["accuracy"])
    theirs.fit(dataset(), epochs=2, verbose=0, shuffle=False)
    assert_equal(model.get_weights(), theirs.get_weights())
    expected = theirs.fit(dataset(), verbose=0, shuffle=False).history
    assert_equal(loaded.get_weights(), theirs.get_weights())
    assert_equal(loaded.optimizer.variables, theirs.optimizer.variables)
    assert history.keys() == expected.keys()
    np.testing.assert_allclose(history["loss"], expected["loss"], atol=1e-5)


@saves_by_keras
def test_B7_ours_continues_where_fit_of_keras_ended_after_save_and_load():
    theirs = keras_model()
    theirs.compile("adam", loss())
    theirs.fit(dataset(), verbose=0, shuffle=False)
    theirs.save("model.keras")
    theirs.fit(dataset(), verbose=0, shuffle=False)
    loaded = keras.models.load_model("model.keras")
    KerasModel(loaded, INPUTS, TARGETS, flow()).fit(max_epoch=1, monitors=[])
    assert_equal(loaded.get_weights(), theirs.get_weights())
    assert_equal(loaded.optimizer.variables, theirs.optimizer.variables)


@keras.utils.register_keras_serializable("towerpack_tests")
class Reversed(keras.Model):
    """Calls its layers in another order than it has them, and makes their weights when called."""

    def __init__(self, **options):
        super().__init__(**options)
        self.last, self.first = keras.layers.Dense(3), keras.layers.Dense(6, "tanh")

    def call(self, x):
        return self.last(self.first(x))


@saves_by_keras
def test_B7_a_subclassed_model_continues_after_save_and_load():
    ours = KerasModel(Reversed, INPUTS, TARGETS, flow())
    ours.compile("adam", loss())
    start = Start(ours)
    ours.fit(max_epoch=2, monitors=[], callbacks=[start])
    names = list(ours.trainer.store.trainable())
    assert [name.rpartition("/")[2] for name in names] == ["kernel", "bias"] * 2
    ours.model.save("model.keras")
    loaded = keras.models.load_model("model.keras")
    loaded.fit(dataset(), verbose=0, shuffle=False)

    theirs = Reversed()
    theirs(np.zeros([1, 4], np.float32))
    theirs.set_weights(start.weights)
    theirs.compile("adam", loss())
    theirs.fit(dataset(), epochs=3, verbose=0, shuffle=False)
    assert_equal(loaded.get_weights(), theirs.get_weights())


def assert_equal(ours, theirs):
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(as_array(one), as_array(two), atol=1e-5)


def as_array(value):
    return value if isinstance(value, np.ndarray) else value.numpy()


def test_a_predictor_does_not_compile_the_model_that_was_trained_anew():
    model = keras_model()
    ours = KerasModel(model, INPUTS, TARGETS, flow())
    ours.compile("adam", loss())
    ours.fit(max_epoch=1, monitors=[])
    trained_by = model.optimizer
    weights = model.get_weights()
    config = PredictConfig(
        tower_func=ours.trainer.tower_func, input_names=["x"], output_names=["prediction"]
    )
    (prediction,) = OfflinePredictor(config)(arrays()[0])
    assert model.optimizer is trained_by
    assert_equal(model.get_weights(), weights)
    np.testing.assert_allclose(prediction, model.predict(arrays()[0], verbose=0), atol=1e-5)


def test_B7_loss_weights():
    def both(x):
        return [keras.layers.Dense(1, name="a")(x), keras.layers.Dense(1, name="b")(x)]

    x, _ = arrays()
    targets = [x.sum(1, keepdims=True), x.prod(1, keepdims=True)]
    specs = [tf.TensorSpec([None, 1], tf.float32, name) for name in ("sum", "product")]
    source = BatchData(DataFromArrays(x, *targets, shuffle=False), BATCH, remainder=True)
    ours = KerasModel(both, INPUTS, specs, source)
    ours.compile(keras.optimizers.SGD(0.1), ["mse", "mae"], loss_weights=[0.25, 3.0])
    start = Start(ours)
    ours.fit(max_epoch=2, monitors=[], callbacks=[start])

    inputs = keras.Input([4])
    theirs = keras.Model(inputs, both(inputs))
    theirs.set_weights(start.weights)
    theirs.compile(keras.optimizers.SGD(0.1), ["mse", "mae"], loss_weights=[0.25, 3.0])
    theirs.fit(x, targets, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    assert_equal(ours.model.get_weights(), theirs.get_weights())


@pytest.mark.parametrize("trainer", [SimpleTrainer, lambda: SyncMultiGPUTrainer(2)])
def test_B7_use_ema_is_finalized_in_a_model_of_ours_too(trainer):
    """As `fit` ends: each weight is its moving average."""

    class Model(ModelDesc):
        def inputs(self):
            return [*INPUTS, *TARGETS]

        def build_graph(self, x, label):
            return loss()(label, FullyConnected("fc", x, 3))

        def optimizer(self):
            return ema()

    trainer = trainer()
    config = TrainConfig(model=Model(), dataflow=flow(), max_epoch=1, monitors=[])
    launch_train_with_config(config, trainer)
    average = next(v for name, v in trainer.store.variables.items() if "W" in name and "av" in name)
    np.testing.assert_array_equal(trainer.store["fc/W"], average)

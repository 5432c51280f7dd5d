"""Mistakes in a config come with a cure."""

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_arrays, tiny_flow
from towerpack import optimizer
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import ModelSaver, ScheduledHyperParamSetter
from towerpack.monitor import Monitors
from towerpack.train import (
    SimpleTrainer,
    TrainConfig,
    Trainer,
    launch_train_with_config,
)


def config(**changes):
    options = {
        "model": TinyModel(),
        "dataflow": tiny_flow(),
        "max_epoch": 1,
        "monitors": [],
        "extra_callbacks": [],
    }
    return TrainConfig(**{**options, **changes})


def test_arrays_in_the_place_of_a_flow():
    with pytest.raises(TypeError, match=r"shapes \(60, 4\), \(60,\); write .*DataFromArrays"):
        config(dataflow=tiny_arrays())
    with pytest.raises(TypeError, match="DataFromArrays"):
        config(dataflow=None, data=list(tiny_arrays()))


def test_a_model_of_another_kind():
    with pytest.raises(TypeError, match=r"received Sequential; a Keras model .* KerasModel\(model"):
        config(model=tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1)]))
    with pytest.raises(TypeError, match=r"this is a class: write TinyModel\(\)"):
        config(model=TinyModel)


def test_a_trainer_or_callback_without_parentheses():
    with pytest.raises(TypeError, match=r"the class SimpleTrainer; write SimpleTrainer\(\)"):
        launch_train_with_config(config(), SimpleTrainer)
    with pytest.raises(TypeError, match=r"the class ModelSaver; write ModelSaver\(\)"):
        launch_train_with_config(config(callbacks=[ModelSaver]), SimpleTrainer())
    with pytest.raises(TypeError, match="expected a TrainConfig first, received <towerpack"):
        launch_train_with_config(SimpleTrainer(), config())
    with pytest.raises(TypeError, match=r"with setup_graph\(\), such as SimpleTrainer\(\)"):
        launch_train_with_config(config(), Trainer())
    with pytest.raises(TypeError, match=r"expected SimpleTrainer\(\) .* received 2"):
        SimpleTrainer(2)


def test_a_trainer_that_is_used_twice():
    trainer = SimpleTrainer()
    launch_train_with_config(config(), trainer)
    with pytest.raises(RuntimeError, match="make a new trainer for each run"):
        launch_train_with_config(config(), trainer)


@pytest.mark.parametrize("options", [{}, {"eager": True}])
def test_a_python_if_on_a_tensor(options):
    class Branching(TinyModel):
        def build_graph(self, x, label):
            cost = super().build_graph(x, label)
            return cost * 2 if cost > 1 else cost

    with pytest.raises(TypeError) as caught:
        launch_train_with_config(config(model=Branching()), SimpleTrainer(**options))
    assert "use tf.where(condition, a, b), tf.cond or tf.while_loop" in caught.value.__notes__[0]


def test_an_unknown_hyperparameter():
    class Rated(TinyModel):
        def optimizer(self):
            return optimizer.SGD(0.1)

    setter = ScheduledHyperParamSetter("lerning_rate", [(0, 0.1)])
    with pytest.raises(KeyError, match=r"shape \(\) are 'learning_rate', .*'global_step'"):
        launch_train_with_config(config(model=Rated(), callbacks=[setter]), SimpleTrainer())


def test_an_unknown_scalar():
    monitors = Monitors([])
    for name in ("cost", "time/data", "validation_error"):
        monitors.put_scalar(name, 1.0)
    with pytest.raises(KeyError, match="'validation_eror'; known are 'validation_error', "):
        monitors.get_latest("validation_eror")


@pytest.mark.parametrize(
    "given",
    [optimizer.SGD(0.25), lambda: optimizer.SGD(0.25), v1.train.GradientDescentOptimizer(0.25)],
    ids=["an optimizer", "a function", "v1"],
)
def test_the_optimizer_of_a_config_comes_before_that_of_the_model(given):
    class Slow(TinyModel):
        def optimizer(self):
            raise AssertionError("it must not be asked for")

    rows = tiny_arrays()[0][:10]
    label = tiny_arrays()[1][:10]
    trainer = SimpleTrainer()
    made = config(model=Slow(), optimizer=given, steps_per_epoch=1, dataflow=tiny_flow(False))
    zero = {"fc/W": np.zeros([4, 3], np.float32), "fc/b": np.zeros([3], np.float32)}
    made.session_init = zero
    launch_train_with_config(made, trainer)
    error = (np.full([10, 3], 1 / 3) - np.eye(3)[label]) / 10
    np.testing.assert_allclose(trainer.store["fc/W"], -0.25 * rows.T @ error, atol=1e-6)

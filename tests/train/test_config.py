"""Mistakes in a config come with a cure; the program of old notes runs as it was written."""

import subprocess
import sys

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_arrays, tiny_flow
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import Callbacks, ModelSaver, ScheduledHyperParamSetter
from towerpack.core import logger
from towerpack.monitor import Monitors
from towerpack.tower import optimizer
from towerpack.train import (
    SimpleTrainer,
    SyncMultiGPUTrainer,
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
    with pytest.raises(TypeError, match=r"expected SimpleTrainer\(\) or a TrainConfig, received 2"):
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


@pytest.mark.parametrize("kind", [SimpleTrainer, SyncMultiGPUTrainer])
def test_a_trainer_may_be_given_its_config(kind, tmp_path):
    logger.set_logger_dir(tmp_path / "run")
    try:
        trainer = kind(config(callbacks=Callbacks([ModelSaver()])))
        trainer.train()
    finally:
        logger.close_log_file()
    assert trainer.global_step == 6
    assert (tmp_path / "run" / "checkpoint").exists()


NOTE_001 = """
import numpy as np
import tensorflow.compat.v1 as tf
from towerpack import *

my_dataflow = BatchData(DataFromArrays(np.ones([64, 28, 28], "float32"), np.zeros(64, "int32")), 16)
lr = 1e-3

class Model(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None, 28, 28], tf.float32, "image"), tf.TensorSpec([None], tf.int32, "label")]

    def build_graph(self, image, label):
        image = tf.expand_dims(image, 3)
        with argscope(Conv2D, filters=4, kernel_size=3):
            logits = (LinearWrap(image)  # the starting brace is only for line-breaking
                      .Conv2D('conv0')
                      .MaxPooling('pool0', 2)
                      .Conv2D('conv1', padding='SAME')
                      .Conv2D('conv2')
                      .MaxPooling('pool1', 2)
                      .Conv2D('conv3')
                      .FullyConnected('fc0', 512, nl=tf.nn.relu)
                      .Dropout('dropout', 0.5)
                      .FullyConnected('fc1', out_dim=10, nl=tf.identity)())
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(loss, name='cost')

logger.auto_set_dir()
config =  TrainConfig(
            dataflow=my_dataflow, 
            optimizer=tf.train.AdamOptimizer(lr),
            callbacks=Callbacks([ModelSaver(), StopAt("2 epochs")]),
            model=Model())

# start training
%s(config).train()
print("at step", get_checkpoint_path(logger.get_logger_dir()))
"""  # noqa: E501, W291 (the program is quoted)


@pytest.mark.parametrize("trainer", ["SimpleTrainer", "SyncMultiGPUTrainer"])
def test_the_program_of_old_notes_runs_as_written(trainer, tmp_path):
    script = tmp_path / "note.py"
    script.write_text(NOTE_001 % trainer)
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "train_log/note/model-8" in run.stdout

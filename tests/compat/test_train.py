"""`SimpleTrainer(config).train()`, as tensorpack's first scripts trained."""

import subprocess
import sys

import pytest

from tests.tiny_model import TinyModel, tiny_flow
from towerpack.callbacks import Callbacks, ModelSaver
from towerpack.compat.train import SimpleTrainer, SyncMultiGPUTrainer
from towerpack.core import logger
from towerpack.train import TrainConfig


@pytest.mark.parametrize("kind", [SimpleTrainer, SyncMultiGPUTrainer])
def test_a_trainer_may_be_given_its_config(kind, tmp_path):
    config = TrainConfig(
        model=TinyModel(),
        dataflow=tiny_flow(),
        max_epoch=1,
        monitors=[],
        extra_callbacks=[],
        callbacks=Callbacks([ModelSaver()]),
    )
    logger.set_logger_dir(tmp_path / "run")
    try:
        trainer = kind(config)
        trainer.train()
    finally:
        logger.close_log_file()
    assert trainer.global_step == 6
    assert (tmp_path / "run" / "checkpoint").exists()


NOTE_001 = """
import numpy as np
import tensorflow.compat.v1 as tf
from towerpack import *
from towerpack.compat.layers import *
from towerpack.compat.train import *

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
def test_the_program_of_old_notes_runs_with_the_old_trainers(trainer, tmp_path):
    script = tmp_path / "note.py"
    script.write_text(NOTE_001 % trainer)
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "train_log/note/model-8" in run.stdout

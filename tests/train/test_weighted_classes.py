"""Runs on `ClassWeightData`: they continue exactly and record the classes of their data."""

import numpy as np
import pytest

from tests.tiny_model import BATCH, TinyModel, tiny_arrays
from towerpack._tensorflow import tf
from towerpack.callbacks import ClassReport, InferenceRunner, ModelSaver
from towerpack.core import logger
from towerpack.dataflow import BatchData, ClassWeightData, DataFromArrays
from towerpack.models import FullyConnected
from towerpack.monitor import RunRecord
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

X, LABELS = tiny_arrays()
KEPT = np.flatnonzero((LABELS > 0) | (np.arange(len(LABELS)) % 5 == 0))  # class 0 is rare
COUNTS = [[str(each), int((LABELS[KEPT] == each).sum())] for each in range(3)]


class Weighted(TinyModel):
    def inputs(self):
        return [*super().inputs(), tf.TensorSpec([None], tf.float32, "weight")]

    def build_graph(self, x, label, weight):
        logits = FullyConnected("fc", x, 3)
        tf.nn.softmax(logits, name="prob")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(weight * loss, name="cost")


def train(directory, class_weight, epochs):
    logger.set_logger_dir(directory)
    weighted = class_weight == "balanced"
    source = DataFromArrays(X[KEPT], LABELS[KEPT], shuffle=weighted, seed=4)
    test = ClassWeightData(
        DataFromArrays(X, LABELS), dict.fromkeys(range(3), 1) if weighted else None
    )
    trainer = SimpleTrainer(jit=False)
    launch_train_with_config(
        TrainConfig(
            model=Weighted() if weighted else TinyModel(),
            dataflow=BatchData(ClassWeightData(source, class_weight), BATCH),
            callbacks=[
                InferenceRunner(BatchData(test, 20), ClassReport(picture=False)),
                ModelSaver(),
            ],
            extra_callbacks=[],
            monitors=[RunRecord()],
            steps_per_epoch=5,  # so that a run stops in the middle of the data
            max_epoch=epochs,
            resume="auto",
        ),
        trainer,
    )
    logger.close_log_file()
    return trainer.store.variables["fc/W"].numpy()


@pytest.mark.parametrize("class_weight", ["balanced", "resample"])
def test_a_run_continues_exactly_and_records_its_classes(class_weight, tmp_path):
    tf.random.set_seed(1)
    whole = train(tmp_path / "whole", class_weight, 4)
    tf.random.set_seed(1)
    begun = train(tmp_path / "run", class_weight, 1)
    np.testing.assert_array_equal(train(tmp_path / "run", class_weight, 4), whole)
    assert (begun != whole).any()
    classes = RunRecord.load(tmp_path / "run")["classes"]
    assert classes["training"] == {"counts": COUNTS, "note": f"class_weight={class_weight!r}"}
    assert classes["validation"]["counts"] == [
        [str(c), n] for c, n in enumerate(np.bincount(LABELS))
    ]

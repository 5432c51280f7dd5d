"""Metrics of Keras in training and validation, against the metrics by themselves."""

import numpy as np
import pytest

from tests.callbacks.test_inferencers import over_batches
from tests.callbacks.training import FUSED, STEPS, Keeper, Model, run
from tests.tiny_model import tiny_arrays, tiny_flow
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    InferenceRunner,
    KerasMetric,
    PeriodicTrigger,
    ProcessTensors,
    TrainingMetric,
)
from towerpack.callbacks.keras_metrics import make_metric
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.train import AsyncMultiGPUTrainer, SimpleTrainer

RNG = np.random.default_rng(0)
LABELS = RNG.integers(5, size=101).astype(np.int32)
SCORES = tf.nn.softmax(RNG.normal(size=(101, 5)) + np.eye(5)[LABELS]).numpy().astype(np.float32)
BINARY, SCORE = (LABELS > 2).astype(np.float32), SCORES[:, 3:].sum(axis=1)
ONE_HOT = np.eye(5, dtype=np.float32)[LABELS]
WEIGHTS = RNG.integers(4, size=101).astype(np.float32)


def twice_the_difference(label, prediction):
    return 2 * tf.abs(label - prediction)


@pytest.mark.parametrize(
    "metric, scores, labels",
    [
        ("AUC", SCORE, BINARY),
        ("auc", SCORE, BINARY),
        ("Precision", SCORE, BINARY),
        ("mse", SCORE, BINARY),
        ("MeanAbsoluteError", SCORE, BINARY),
        ("SparseCategoricalCrossentropy", SCORES, LABELS),
        ("accuracy", SCORES, LABELS),
        ("accuracy", SCORE, BINARY),
        ("acc", SCORES, ONE_HOT),
        ("ce", SCORES, LABELS),
        (twice_the_difference, SCORE, BINARY),
        (lambda: tf.keras.metrics.R2Score(), SCORE[:, None], BINARY[:, None]),
        (lambda: tf.keras.metrics.SensitivityAtSpecificity(0.8), SCORE, BINARY),
        (lambda: tf.keras.metrics.SparseTopKCategoricalAccuracy(2), SCORES, LABELS),
    ],
)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_over_uneven_batches_it_is_the_metric_of_all_samples(metric, scores, labels, weights):
    given = metric() if callable(metric) and metric.__name__ == "<lambda>" else metric
    weighted = None if weights is None else "weight"
    inferencer = KerasMetric(given, sample_weight=weighted)
    assert inferencer.get_fetches() == ["label", "prob", *([weighted] if weighted else [])]
    columns = [labels, scores, *([] if weights is None else [weights])]
    ((name, found),) = over_batches(inferencer, *columns)[0].items()

    given = metric() if callable(metric) and metric.__name__ == "<lambda>" else metric
    expected = make_metric(given, labels.shape, scores.shape)
    expected.reset_state()
    # As `fit` and `evaluate` of Keras give predictions of one number to a metric.
    expected.update_state(
        *(c[:, None] if scores.ndim == 1 and n < 2 else c for n, c in enumerate(columns))
    )
    assert found == pytest.approx(float(np.squeeze(expected.result())), rel=1e-6)
    assert name.startswith("validation_")


def test_a_runner_with_a_metric_logs_what_evaluate_of_keras_returns():
    flow = BatchData(DataFromArrays(*tiny_arrays(), shuffle=False), 7, remainder=True)
    metrics = ["accuracy", "SparseCategoricalCrossentropy"]
    result = run([InferenceRunner(flow, [KerasMetric(name) for name in metrics])], 1)
    dense = tf.keras.layers.Dense(3, activation="softmax")
    model = tf.keras.Sequential([tf.keras.Input([4]), dense])
    dense.set_weights([result.trainer.store[name].numpy() for name in ("fc/W", "fc/b")])
    model.compile(loss="sparse_categorical_crossentropy", metrics=metrics)
    x, y = tiny_arrays()
    expected = model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)
    assert result.monitor.of("validation_accuracy") == [pytest.approx(expected["accuracy"])]
    (found,) = result.monitor.of("validation_SparseCategoricalCrossentropy")
    assert found == pytest.approx(expected["SparseCategoricalCrossentropy"], rel=1e-5)


def test_results_with_several_numbers_have_a_name_each():
    f1 = KerasMetric(tf.keras.metrics.F1Score(average=None), name="f1")
    found, _ = over_batches(f1, ONE_HOT, SCORES)
    assert list(found) == [f"f1_{number}" for number in range(5)]

    class Extremes(tf.keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="extremes")
            self.most = self.add_variable([], "zeros", aggregation="mean", name="most")

        def update_state(self, label, prediction, sample_weight=None):
            self.most.assign(tf.maximum(self.most, tf.reduce_max(prediction)))

        def result(self):
            return {"most": self.most, "double": 2 * self.most}

    found, _ = over_batches(KerasMetric(Extremes()), BINARY, SCORE)
    assert found["validation_extremes_most"] == pytest.approx(SCORE.max())
    assert found["validation_extremes_double"] == pytest.approx(2 * SCORE.max())


@pytest.mark.parametrize("kind", [KerasMetric, TrainingMetric])
def test_a_typo_names_the_nearest_metric(kind):
    with pytest.raises(ValueError, match="received 'Recal'; the nearest are 'Recall'"):
        kind("Recal")
    with pytest.raises(TypeError, match="expected a metric of Keras, .* received 3"):
        kind(3)


def test_an_unknown_tensor_is_named_before_the_first_step():
    with pytest.raises(KeyError, match="no tensor named 'probs'; the nearest are .*'prob'"):
        run([TrainingMetric("accuracy", prediction="probs")], 1)


def test_in_training_it_covers_each_sample_of_an_epoch_once_and_steps_are_fused():
    metrics = [
        TrainingMetric("accuracy"),
        TrainingMetric(tf.keras.metrics.AUC(num_thresholds=20), "score", "is_positive", "area"),
        TrainingMetric("MeanSquaredError", "score", "is_positive", sample_weight="is_positive"),
    ]
    fused = run(metrics, 2)
    assert fused.alone == []
    names = ["prob", "label", "score", "is_positive"]
    seen = []
    run([ProcessTensors(names, lambda *values: seen.append(values))], 2)
    for epoch in range(2):
        columns = zip(*seen[epoch * STEPS : (epoch + 1) * STEPS], strict=True)
        prob, label, score, positive = map(np.concatenate, columns)
        area = tf.keras.metrics.AUC(num_thresholds=20)
        area.update_state(positive, score)
        expected = {
            "training_accuracy": (prob.argmax(axis=1) == label).mean(),
            "area": float(area.result()),
            "training_MeanSquaredError": np.average((score - positive) ** 2, weights=positive),
        }
        for name, value in expected.items():
            assert fused.monitor.of(name)[epoch] == pytest.approx(value, rel=1e-5), name


def test_a_run_that_is_resumed_within_an_epoch_logs_the_same():
    whole = run([TrainingMetric("accuracy")], 2, keeper=Keeper(STEPS + FUSED))
    (saved,) = [saved for saved in whole.saved if saved.step == STEPS + FUSED]
    assert not [name for name in saved.variables if "metric" in name]
    again = run([TrainingMetric("accuracy")], 2, resume=saved)
    assert whole.monitor.of("training_accuracy")[1:] == again.monitor.of("training_accuracy")


def test_it_begins_anew_at_each_trigger():
    every = PeriodicTrigger(TrainingMetric("accuracy"), every_k_steps=2)
    found = run([every], 1).monitor.of("training_accuracy")
    assert len(found) == 3
    whole = run([TrainingMetric("accuracy")], 1).monitor.of("training_accuracy")
    assert np.mean(found) == pytest.approx(whole[0])


def test_the_batches_of_training_may_differ_in_size():
    flow = BatchData(DataFromArrays(*tiny_arrays(), shuffle=False), 25, remainder=True)
    model = Model()
    trainer = SimpleTrainer(jit=False)
    (found,) = run(
        [TrainingMetric("MeanSquaredError", "score", "is_positive")],
        1,
        model=model,
        trainer=trainer,
        flow=flow,
        steps=3,
    ).monitor.of("training_MeanSquaredError")
    x, label = tiny_arrays()
    assert found == pytest.approx(np.mean((x[:, 0] - (label > 0)) ** 2), rel=1e-6)


def test_towers_that_do_not_train_in_step_are_refused():
    with pytest.raises(ValueError, match="needs towers that train in step"):
        run([TrainingMetric("accuracy")], 1, trainer=AsyncMultiGPUTrainer(2), flow=tiny_flow())

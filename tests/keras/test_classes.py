"""`class_weight='balanced'` and 'resample', and the classes that `fit` records."""

from collections import Counter

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

import towerpack
from tests.keras.beside_fit import (
    BATCH,
    LABELS,
    WEIGHTS,
    Y1,
    Case,
    X,
    assert_same,
    by_keras,
    by_us,
    classifier,
    keras,
    started,
)
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, ClassWeightData, DataFromArrays, MapData
from towerpack.keras.classes import counted, weights_and_counts
from towerpack.keras.data import training_data
from towerpack.monitor import RunRecord

CLASSES = Counter(LABELS.tolist())
BALANCED = dict(
    enumerate(compute_class_weight("balanced", classes=np.arange(3), y=LABELS).tolist())
)
ONE_HOT = np.eye(3, dtype="float32")[LABELS]
NOTHING = {"validation_split": 0.0}


def of_one_hot():
    model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    model.compile("adam", "categorical_crossentropy")
    return model


def flow_of(*arrays):
    return BatchData(DataFromArrays(*arrays), BATCH, remainder=True)


@pytest.mark.parametrize(
    ("make", "x", "y", "given"),
    [
        (classifier, X, LABELS, "balanced"),
        (of_one_hot, X, ONE_HOT, "balanced"),
        (classifier, flow_of(X, LABELS), None, "balanced"),
        (
            classifier,
            BatchData(ClassWeightData(DataFromArrays(X, LABELS)), BATCH, remainder=True),
            None,
            None,
        ),
    ],
    ids=["arrays", "one-hot", "flow", "ClassWeightData"],
)
def test_balanced_equals_fit_with_the_dict_of_scikit_learn(make, x, y, given):
    case = Case(make)
    ours = by_us(case, **NOTHING, x=x, y=y, class_weight=given)
    y = LABELS if y is None else y
    assert_same(ours, by_keras(case, **NOTHING, x=X, y=y, class_weight=BALANCED))


def test_the_weights_are_those_of_the_part_that_is_trained_on():
    options = {"x": X, "y": LABELS, "validation_split": 0.3}
    first = LABELS[: int(len(X) * 0.7)]
    found = compute_class_weight("balanced", classes=np.unique(first), y=first)
    dictionary = dict(zip(np.unique(first).tolist(), found.tolist(), strict=True))
    case = Case(classifier)
    ours = by_us(case, **options, class_weight="balanced")
    assert_same(ours, by_keras(case, **options, class_weight=dictionary))


@pytest.mark.parametrize("towers", [1, 2])
def test_resampling_draws_each_class_of_arrays_equally_often(towers):
    model, rows = started(Case(classifier)), np.arange(len(X), dtype="float32")[:, None]
    data = training_data(
        rows, LABELS, WEIGHTS, model=model, batch_size=6, resample=True, towers=towers
    )
    size = max(CLASSES.values())
    for epoch in range(2):
        with data.source.flow.iterate(epoch) as batches:
            drawn, labels, weights = (np.concatenate(c) for c in zip(*batches, strict=True))
        assert Counter(labels.tolist()) == dict.fromkeys(CLASSES, size)
        drawn = drawn[:, 0].astype(int)
        np.testing.assert_array_equal(labels, LABELS[drawn])
        np.testing.assert_array_equal(weights, WEIGHTS[drawn])
        assert set(drawn) == set(range(len(X)))


def test_a_resampled_run_trains_and_records_the_classes(tmp_path):
    model = started(Case(classifier))
    history = towerpack.keras.fit(
        model, X, LABELS, BATCH, verbose=0, class_weight="resample", logdir=tmp_path / "run",
        validation_data=(X[:5], LABELS[:5]),
    )  # fmt: skip
    assert history.params["steps"] == -(-3 * max(CLASSES.values()) // BATCH)
    classes = RunRecord.load(tmp_path / "run")["classes"]
    assert classes["training"] == {
        "counts": [[str(each), CLASSES[each]] for each in range(3)],
        "note": "class_weight='resample'",
    }
    assert sum(count for _, count in classes["validation"]["counts"]) == 5


def test_only_what_is_certainly_a_class_is_counted():
    def of_loss(loss):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", loss)
        return model

    sparse, one_hot = of_loss("sparse_categorical_crossentropy"), of_one_hot()
    binary = of_loss(keras.losses.BinaryCrossentropy(from_logits=True))
    assert counted(sparse, LABELS) == counted(one_hot, ONE_HOT) == dict(sorted(CLASSES.items()))
    assert counted(binary, np.array([[0.0], [1.0], [0.0]])) == {0: 2, 1: 1}
    assert counted(of_loss(keras.losses.binary_crossentropy), [0, 1]) is None  # nested
    for model, y in [
        (of_loss("mse"), LABELS),
        (of_loss(None), LABELS),
        (binary, ONE_HOT),  # several labels, which happen to be one
        (binary, np.array([0.25, 1])),
        (sparse, ONE_HOT.astype(int)),  # sequences
        (one_hot, ONE_HOT * 0.5),
        (sparse, None),
        (sparse, {"a": LABELS}),
    ]:
        assert counted(model, y) is None
    assert counted(of_loss("mse"), LABELS, are_classes=True) == CLASSES


@pytest.mark.parametrize(
    ("x", "y", "class_weight", "words"),
    [
        (X, LABELS, "balance", "did you mean 'balanced'"),
        (X, {"a": LABELS}, "resample", "for a model with one output"),
        (X, Y1, "balanced", "number the classes"),
        (
            tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(4), None, "balanced",
            r"received a _BatchDataset; pass the weights, .*class_weights\(labels, 'balanced'\)",
        ),
        (iter([(X, LABELS)]), None, "resample", "received a list_iterator"),
        (
            flow_of(X, LABELS), None, "resample",
            r"received batches of BatchData; put ClassWeightData\(source, 'resample'\) before",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_balanced_is_refused(x, y, class_weight, words):
    model = started(Case(classifier))
    with pytest.raises(ValueError, match=words):
        towerpack.keras.fit(model, x, y, class_weight=class_weight)


def test_weights_on_top_of_weights_are_refused():
    model = started(Case(classifier))
    for x, y, weight in ((X, LABELS, WEIGHTS), (flow_of(X, LABELS, WEIGHTS), None, None)):
        with pytest.raises(ValueError, match="class_weight or sample_weight, received both"):
            towerpack.keras.fit(model, x, y, sample_weight=weight, class_weight="balanced")
    dropped = MapData(flow_of(X, LABELS), lambda batch: batch)
    assert weights_and_counts(model, dropped, None, "balanced")[0] == pytest.approx(BALANCED)

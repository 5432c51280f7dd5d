import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from towerpack.dataflow import class_counts, class_weights, sample_weights

RNG = np.random.default_rng(0)
NUMBERS = RNG.choice(4, 200, p=[0.8, 0.15, 0.03, 0.02])
WORDS = np.array(["cat", "dog", "eel", "yak"])[NUMBERS]


@pytest.mark.parametrize(
    "labels",
    [
        NUMBERS,
        NUMBERS.astype(np.uint8),
        NUMBERS.astype(np.float32),
        NUMBERS - 2,
        NUMBERS == 1,
        WORDS,
        WORDS.astype(object),
        NUMBERS.tolist(),
    ],
    ids=["int64", "uint8", "float32", "negative", "bool", "text", "objects", "list"],
)
def test_balanced_equals_scikit_learn(labels):
    classes = np.unique(np.asarray(labels))
    expected = compute_class_weight("balanced", classes=classes, y=labels)
    weights = class_weights(labels, "balanced")
    assert list(weights) == classes.tolist()
    assert list(weights.values()) == expected.tolist()
    np.testing.assert_array_equal(
        sample_weights(labels, "balanced"), compute_sample_weight("balanced", labels)
    )
    assert list(class_counts(labels).values()) == [(labels == each).sum() for each in classes]


def test_weights_of_a_dict_equal_scikit_learn():
    given = {"cat": 0.5, "dog": 1, "eel": 7.25, "yak": 0}
    np.testing.assert_array_equal(sample_weights(WORDS, given), compute_sample_weight(given, WORDS))
    assert class_weights(WORDS, given) == given
    assert class_weights(WORDS, None) == dict.fromkeys(given, 1.0)


def test_one_hot_rows_and_columns_are_classes():
    expected = class_weights(NUMBERS, "balanced")
    assert class_weights(np.eye(4, dtype=np.float32)[NUMBERS], "balanced") == expected
    assert class_weights(NUMBERS[:, None], "balanced") == expected
    assert class_counts([True, False, True]) == {0: 1, 1: 2}


def test_a_part_of_the_data_may_lack_a_class():
    weights = {0: 1.0, 1: 5.0}
    assert sample_weights([0, 0], weights, classes=[0, 1]).tolist() == [1.0, 1.0]
    assert sample_weights([], weights, classes=[0, 1]).tolist() == []
    with pytest.raises(ValueError, match=r"a weight for 1; pass 1 for"):
        sample_weights([0, 0], weights)


@pytest.mark.parametrize(
    ("labels", "class_weight", "words"),
    [
        ([0, 1], {0: 1}, r"each of the classes 0: 1 \(50.0%\), 1: 1 .*no weight for 1; pass 1"),
        ([0, 1], {0: 1, 1: 1, 7: 1}, "received a weight for 7"),
        (["a", "b"], {"a": 1, "B": 1}, "received a weight for 'B'"),
        ([0, 1], {0: 1, 1: -2}, "weights of 0 or more in class_weight, received -2"),
        ([0, 1], {0: 1, 1: float("nan")}, "received nan for the class 1"),
        ([0, 1], {0: 1, 1: None}, "received None for the class 1"),
        ([0, 1], "balance", "received 'balance': did you mean 'balanced'"),
        ([0, 1], 3.0, "expected class_weight to be None, 'balanced', 'resample' or a dict"),
        ([0, 1], [1.0, 2.0], r"received \[1.0, 2.0\]"),
        ([0, 1], "resample", "has no weights: use BalancedData"),
        ([0, np.nan], "balanced", "the label nan for sample 1 and 0 more"),
        ([0.5, 1], "balanced", "the label 0.5 for sample 0.*number the classes"),
        ([[1, 1, 0]], "balanced", "samples with several labels"),
        ([0, None], "balanced", "expected the class of each sample as a whole number"),
        (np.zeros((2, 2, 2)), "balanced", r"of shape \(2, 2, 2\)"),
    ],
)
def test_refused_labels_and_weights(labels, class_weight, words):
    with pytest.raises((TypeError, ValueError), match=words):
        sample_weights(labels, class_weight)
    with pytest.raises((TypeError, ValueError), match=words):
        class_weights(labels, class_weight)

from collections import Counter

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_sample_weight

from tests.dataflow.examples import iterated, listed
from towerpack.dataflow import (
    BatchData,
    ClassWeightData,
    DataFromArrays,
    DataFromList,
    FilterData,
    MapData,
    MultiProcessMapData,
)

LABELS = np.array([0] * 10 + [1] * 3 + [2])
ROWS = np.arange(14)
BALANCED = compute_sample_weight("balanced", LABELS).astype(np.float32)
WORDS = np.array(["ash", "birch", "cedar"])[LABELS]


def same(datapoint):
    return datapoint


@pytest.mark.parametrize(
    "labels", [LABELS, WORDS, np.eye(3)[LABELS], LABELS[:, None], LABELS.astype("float32")],
    ids=["numbers", "words", "one-hot", "column", "floats"],
)  # fmt: skip
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_datapoint_and_each_batch_gets_the_weight_of_scikit_learn(labels, shuffle):
    arrays = DataFromArrays(ROWS, labels, shuffle=shuffle)
    by_function = ClassWeightData(arrays, "balanced", lambda dp: dp[1])
    for flow in (ClassWeightData(arrays), ClassWeightData(MapData(arrays, same)), by_function):
        assert {int(row): weight for row, _, weight in flow} == dict(
            zip(ROWS, BALANCED, strict=True)
        )
        for row, _, weight in BatchData(flow, 4, remainder=True):
            assert weight.dtype == np.float32
            np.testing.assert_array_equal(weight, BALANCED[row])


def test_datapoints_keep_their_form():
    columns = {"y": LABELS, "x": ROWS}
    (batch,) = BatchData(ClassWeightData(DataFromArrays(columns), label="y"), 14)
    assert list(batch) == ["y", "x", "sample_weight"]
    np.testing.assert_array_equal(batch["sample_weight"], BALANCED)
    pairs = DataFromList([(3, "a"), (4, "b")])
    assert list(ClassWeightData(pairs, {"a": 2, "b": 0})) == [(3, "a", 2), (4, "b", 0)]
    assert list(ClassWeightData(DataFromList([[1, [0, 1]]]), {1: 4})) == [[1, [0, 1], 4]]


def test_weights_travel_with_workers():
    flow = ClassWeightData(DataFromArrays(ROWS, LABELS, shuffle=True))
    plain = [float(weight) for *_, weight in flow.iterate(1)]
    worked = MultiProcessMapData(flow, 2, same, strict=True)
    with worked.iterate(1) as datapoints:
        assert [float(weight) for *_, weight in datapoints] == plain


@pytest.mark.parametrize("known", [False, True], ids=["arrays", "labels="])
def test_resampling_draws_each_class_equally_often(known):
    source = DataFromArrays(ROWS, LABELS)
    flow = ClassWeightData(source, "resample", labels=LABELS if known else None)
    assert len(flow) == 30
    assert flow.class_counts == {0: 10, 1: 3, 2: 1}
    for epoch in range(3):
        drawn = [(int(row), int(label)) for row, label in flow.iterate(epoch)]
        assert Counter(label for _, label in drawn) == {0: 10, 1: 10, 2: 10}
        assert {row for row, _ in drawn} == set(ROWS.tolist())
    (batch,) = BatchData(flow, 30)
    assert len(batch) == 2


def test_none_counts_only_and_a_flow_that_is_iterated_needs_its_labels():
    flow = ClassWeightData(DataFromArrays(ROWS, LABELS), None)
    assert flow.class_counts == {0: 10, 1: 3, 2: 1}
    assert len(flow[0]) == 2
    kept = FilterData(DataFromArrays(ROWS, LABELS), lambda dp: dp[0] >= 8)
    assert ClassWeightData(kept).class_counts == {0: 2, 1: 3, 2: 1}
    generated = ClassWeightData(iterated(7), "balanced", 0, labels=range(7))
    assert [weight for *_, weight in generated] == [1] * 7


@pytest.mark.parametrize(
    ("flow", "options", "words"),
    [
        (lambda: iterated(), {}, "can only be iterated, so its labels are not known: pass labels="),
        (lambda: BatchData(listed(), 2), {}, "put ClassWeightData before the stage that makes"),
        (lambda: listed(), {"label": 7}, "no component 7 in a datapoint that has 2 components"),
        (lambda: listed(), {"labels": [1]}, "expected 7 labels, one for each .* received 1"),
        (lambda: listed(), {"class_weight": "resampled"}, "did you mean 'resample'"),
        (lambda: listed(), {"class_weight": "resample"}, "pass it shuffle=False"),
        (lambda: listed(), {"class_weight": {0: 1}}, "no weight for 10; pass 1"),
        (lambda: DataFromList([]), {}, "expected datapoints to balance"),
        (lambda: DataFromArrays([0.0, np.nan]), {}, "received the label nan for sample 1"),
        (
            lambda: MapData(DataFromList([0, 1]), lambda x: x or None),
            {"class_weight": "resample", "label": lambda dp: 0},
            "cannot know the label of datapoint 0",
        ),
    ],
)
def test_what_cannot_be_weighed_is_refused(flow, options, words):
    with pytest.raises((LookupError, TypeError, ValueError), match=words):
        ClassWeightData(flow(), **options)


def test_datapoints_that_cannot_have_a_weight_are_refused():
    with pytest.raises(ValueError, match="already have the key 'sample_weight'"):
        ClassWeightData(DataFromArrays({"sample_weight": ROWS, "y": LABELS}), label="y")[0]
    with pytest.raises(TypeError, match="that are lists, tuples or dicts, received a int"):
        ClassWeightData(DataFromList([0, 1]), label=lambda dp: dp)[0]
    changing = ClassWeightData(DataFromArrays(ROWS, LABELS), labels=LABELS % 2)
    for read in (lambda: changing[13], lambda: next(iter(BatchData(changing, 14)))):
        with pytest.raises(ValueError, match=r"expected a label among 0: 11 .*, received .*2"):
            read()

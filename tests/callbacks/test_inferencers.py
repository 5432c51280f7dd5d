import numpy as np
import pytest
from sklearn import metrics

from tests.callbacks.training import Kept
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    BinaryClassificationStats,
    ClassificationError,
    ClassReport,
    ConfusionMatrix,
    Inferencer,
    PrecisionRecallCurve,
    RocCurve,
    ScalarStats,
    TopK,
)
from towerpack.callbacks.inferencers import precision_recall_curve
from towerpack.monitor import Monitors

CLASSES = 5


class Trainer:
    """As much of one as inferencers see."""

    def __init__(self):
        self.kept = Kept()
        self.monitors = Monitors([self.kept])


def classes_put(inferencer, *arrays):
    """What a pass tells the monitors of the classes of the set."""
    over_batches(inferencer, *arrays)
    return inferencer.trainer.kept.classes


def over_batches(inferencer, *arrays, batch=16):
    """The scalars and pictures of a pass over uneven batches."""
    inferencer.trainer = Trainer()
    for _ in range(2):  # a second pass forgets the first
        inferencer.before_inference()
        for start in range(0, len(arrays[0]), batch):
            inferencer.on_fetches([array[start : start + batch] for array in arrays])
        scalars = inferencer.after_inference()
    return scalars, inferencer.trainer.kept.images


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=101).astype(np.int32)
    scores = rng.random((101, CLASSES)).astype(np.float32) + 0.5 * np.eye(CLASSES)[labels]
    return scores, labels


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "bool", "int8"])
def test_wrong_samples_are_counted_exactly_in_any_type(dtype):
    wrong = np.arange(10_001) % 3 > 0  # float16 counts up to 2048 only
    vector = tf.cast(wrong, dtype).numpy()
    scalars, _ = over_batches(ClassificationError(), vector, batch=7000)
    assert scalars["validation_error"] == wrong.mean()


def test_a_share_of_a_sample_counts_as_such():
    scalars, _ = over_batches(ClassificationError(), np.full(10, 0.25, np.float32), batch=3)
    assert scalars["validation_error"] == 0.25


def test_confusion_matrix_equals_scikit_learns(data):
    scores, labels = data
    inferencer = ConfusionMatrix()
    scalars, images = over_batches(inferencer, scores, labels)
    predicted = scores.argmax(1)
    np.testing.assert_array_equal(
        inferencer.matrix, metrics.confusion_matrix(labels, predicted, labels=range(CLASSES))
    )
    assert scalars["validation_accuracy"] == pytest.approx(np.mean(predicted == labels))
    assert scalars["validation_macro_f1"] == pytest.approx(
        metrics.f1_score(labels, predicted, average="macro")
    )
    assert [name for _, name, _ in images] == ["validation_confusion"] * 2
    assert images[0][2].dtype == np.uint8
    assert len(np.unique(images[0][2])) > 10


def test_confusion_matrix_of_predicted_classes_grows_with_them():
    inferencer = ConfusionMatrix(picture=False)
    over_batches(inferencer, np.array([0, 1, 3]), np.array([0, 2, 3]), batch=1)
    expected = np.zeros((4, 4))
    expected[0, 0] = expected[2, 1] = expected[3, 3] = 1
    np.testing.assert_array_equal(inferencer.matrix, expected)


def test_more_classes_than_names_is_an_error():
    with pytest.raises(ValueError, match="expected 2 classes, received class 3"):
        over_batches(ConfusionMatrix(class_names=["a", "b"]), np.array([3]), np.array([1]))
    with pytest.raises(ValueError, match="one label per sample"):
        over_batches(ConfusionMatrix(), np.zeros([3, 2]), np.zeros([2]))


def test_class_report_names_each_class(data, caplog):
    scores, labels = data
    names = ["ant", "bee", "cat", "dog", "elk"]
    report = ClassReport(class_names=names, picture=False)
    scalars, images = over_batches(report, scores, labels)
    precision, recall, f1, count = metrics.precision_recall_fscore_support(labels, scores.argmax(1))
    assert scalars["validation_macro_f1"] == pytest.approx(f1.mean())
    assert images == []
    row = f"bee    {precision[1]:9.4f}  {recall[1]:6.4f}  {f1[1]:6.4f}  {count[1]:7d}"
    assert row in caplog.text


def test_top_k_equals_scikit_learns(data):
    scores, labels = data
    scalars, _ = over_batches(TopK(k=[1, 2, 4]), scores, labels)
    for k in (1, 2, 4):
        expected = 1 - metrics.top_k_accuracy_score(labels, scores, k=k)
        assert scalars[f"validation_top{k}_error"] == pytest.approx(expected)
    with pytest.raises(ValueError, match="at least 1"):
        TopK(k=[])


@pytest.mark.parametrize("label", [-1, CLASSES, 255, 1.5])
def test_a_label_outside_of_the_classes_is_an_error_and_never_right(data, label):
    scores, labels = data[0].copy(), data[1].astype(np.float32)
    scores[50], labels[50] = np.arange(CLASSES)[::-1], label
    for inferencer in (TopK(k=1), ConfusionMatrix(picture=False), ClassReport(picture=False)):
        message = rf"expected classes in 'label', integers from 0 to 4, received \[ ?{label}"
        with pytest.raises(ValueError, match=message):
            over_batches(inferencer, scores, labels)


def test_a_vector_that_holds_no_classes_is_an_error():
    labels = np.array([0, 1, 1])
    for scores in (np.array([0.2, 0.9, 0.6]), np.array([0, 1, -1])):
        with pytest.raises(ValueError, match="expected classes in 'prob', integers >= 0"):
            over_batches(ConfusionMatrix(picture=False), scores, labels)


def test_a_score_that_is_nan_is_an_error_and_never_right(data):
    scores, labels = data[0].copy(), np.zeros_like(data[1])
    scores[7] = np.nan  # sorted, it would be class 0
    for inferencer in (TopK(k=1), ConfusionMatrix(picture=False)):
        with pytest.raises(ValueError, match="in 'prob', received NaN"):
            over_batches(inferencer, scores, labels)
    with pytest.raises(ValueError, match="in 'prob', received NaN"):
        over_batches(RocCurve(picture=False), scores[:, 0], labels)


def test_classes_that_do_not_occur_have_no_part_in_the_mean():
    scores, labels = np.eye(4)[[0, 1, 1, 0]], np.array([0, 1, 0, 0])
    scalars, _ = over_batches(ConfusionMatrix(picture=False), scores, labels)
    expected = metrics.f1_score(labels, scores.argmax(1), average="macro")
    assert scalars["validation_macro_f1"] == pytest.approx(expected)


def test_the_error_of_no_samples_is_unknown():
    nothing = np.zeros(0), np.zeros((0, CLASSES))
    for inferencer, arrays in ((ClassificationError(), nothing[:1]), (TopK(k=1), nothing[::-1])):
        inferencer.before_inference()
        inferencer.on_fetches(list(arrays))
        assert all(np.isnan(value) for value in inferencer.after_inference().values())


def test_scores_of_small_unsigned_integers_keep_their_order():
    scores, labels = np.array([[0, 200, 100], [3, 1, 2]], np.uint8), np.array([1, 0])
    assert over_batches(TopK(k=1), scores, labels)[0] == {"validation_top1_error": 0.0}


@pytest.mark.parametrize("ties", [False, True])
def test_area_under_the_roc_curve_equals_scikit_learns(ties):
    rng = np.random.default_rng(1)
    labels = rng.integers(2, size=203)
    scores = rng.normal(size=203) + labels
    if ties:
        scores = np.round(scores)
    scalars, images = over_batches(RocCurve(), scores, labels)
    assert scalars == {"validation_auc": pytest.approx(metrics.roc_auc_score(labels, scores))}
    assert [name for _, name, _ in images] == ["validation_roc"] * 2
    two_columns = np.stack([-scores, scores], axis=1)
    assert over_batches(RocCurve(picture=False), two_columns, labels)[0] == scalars


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_equals_scikit_learns(ties):
    rng = np.random.default_rng(2)
    labels = (rng.random(211) < 0.1).astype(int)
    scores = rng.normal(size=211) + labels
    if ties:
        scores = np.round(scores)
    scalars, images = over_batches(PrecisionRecallCurve(), scores, labels)
    expected = metrics.average_precision_score(labels, scores)
    assert scalars == {"validation_average_precision": pytest.approx(expected)}
    counts = {"0": 211 - labels.sum(), "1": labels.sum()}
    assert classes_put(RocCurve(), scores, labels) == {"validation": (counts, "")}
    both = np.stack([-scores, scores], axis=1)
    expected = {"none": counts["0"], "some": counts["1"]}
    names = list(expected)
    assert classes_put(ConfusionMatrix(class_names=names), both, labels) == {
        "validation": (expected, "")
    }
    assert [name for _, name, _ in images] == ["validation_precision_recall"] * 2
    recall, precision = precision_recall_curve(scores, labels == 1)
    known = metrics.precision_recall_curve(labels, scores)
    np.testing.assert_allclose(precision[::-1], known[0])
    np.testing.assert_allclose(recall[::-1], known[1])


def test_average_precision_without_the_class_is_unknown():
    scalars, images = over_batches(PrecisionRecallCurve(), np.array([0.1, 0.2]), np.array([0, 0]))
    assert np.isnan(scalars["validation_average_precision"])
    assert images == []


def test_the_area_of_one_class_is_unknown():
    scalars, images = over_batches(RocCurve(), np.array([0.1, 0.2]), np.array([1, 1]))
    assert np.isnan(scalars["validation_auc"])
    assert images == []
    with pytest.raises(ValueError, match="integers from 0 to 1, received \\[2\\]"):
        over_batches(RocCurve(), np.array([0.1, 0.2]), np.array([1, 2]))


def test_precision_and_recall():
    prediction = np.array([1, 1, 1, 0, 0, 1])
    label = np.array([1, 0, 1, 1, 0, 0])
    scalars, _ = over_batches(BinaryClassificationStats("p", "l"), prediction, label, batch=4)
    assert scalars == {"val_precision": 0.5, "val_recall": pytest.approx(2 / 3)}
    nothing, _ = over_batches(BinaryClassificationStats("p", "l"), np.zeros(3), np.zeros(3))
    assert nothing == {"val_precision": 0.0, "val_recall": 0.0}
    with pytest.raises(ValueError, match="expected classes in 'p', integers from 0 to 1"):
        over_batches(BinaryClassificationStats("p", "l"), np.array([0.5]), np.array([1]))


def test_errors_are_ratios_over_samples_and_scalars_means_over_batches():
    wrong = np.array([1.0, 0, 0, 0, 1])
    assert over_batches(ClassificationError(), wrong, batch=4)[0] == {"validation_error": 0.4}
    stats = ScalarStats(["a:0", "b"], prefix="")
    stats.before_inference()
    stats.on_fetches([1.0, 2.0])
    stats.on_fetches([3.0, 4.0])
    assert stats.after_inference() == {"a": 2.0, "b": 3.0}
    with pytest.raises(ValueError, match="'a:0' has shape"):
        stats.on_fetches([np.zeros(2), 1.0])


def test_an_inferencer_of_ones_own():
    class Largest(Inferencer):
        def _get_fetches(self):
            return ["x"]

        def _before_inference(self):
            self.largest = -np.inf

        def _on_fetches(self, values):
            self.largest = max(self.largest, values[0].max())

        def _after_inference(self):
            return {"largest": self.largest}

    assert over_batches(Largest(), np.arange(40))[0] == {"largest": 39}
    with pytest.raises(NotImplementedError, match="_get_fetches"):
        Inferencer().get_fetches()

"""What a model function may return."""

import pytest

from towerpack._tensorflow import tf
from towerpack.estimator.spec import EstimatorSpec, ModeKeys, ModelFnOps, checked

ONE = tf.constant(1.0)


def test_the_modes_have_the_names_of_tensorflow():
    assert (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT) == ("train", "eval", "infer")
    assert ModeKeys.INFER == ModeKeys.PREDICT


def test_predictions_have_names():
    assert EstimatorSpec("infer", {"a": 1}).named_predictions() == {"a": 1}
    assert ModelFnOps("infer", 1).named_predictions() == {"predictions": 1}


@pytest.mark.parametrize(
    "spec, mode, words",
    [
        (ONE, "train", "to return an EstimatorSpec, received"),
        (EstimatorSpec("infer"), "infer", "expected EstimatorSpec\\(predictions=...\\)"),
        (EstimatorSpec("infer", {"a": 1}), "infer", "expected a tensor as the prediction 'a'"),
        (EstimatorSpec("eval", ONE), "eval", "expected EstimatorSpec\\(loss=...\\) in mode 'eval'"),
        (EstimatorSpec("train", ONE, ONE), "train", "either train_op= or optimizer="),
        (EstimatorSpec("train", ONE, ONE, ONE, optimizer=1), "train", "either train_op="),
    ],
)
def test_what_a_mode_needs_is_checked(spec, mode, words):
    with pytest.raises((TypeError, ValueError), match=words):
        checked(spec, mode)

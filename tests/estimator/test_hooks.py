"""Session hooks of the user's own, the usual ones, and those of TensorFlow."""

import numpy as np
import pytest

from tests.estimator.linear import data, few_logs, with_optimizer
from towerpack import ModelSaver
from towerpack._tensorflow import v1
from towerpack.estimator import (
    CheckpointSaverHook,
    Estimator,
    EstimatorSpec,
    LoggingTensorHook,
    NanTensorHook,
    SessionRunArgs,
    SessionRunHook,
    StepCounterHook,
    StopAtStepHook,
)
from towerpack.estimator.hooks import as_callback

sgd = with_optimizer(lambda: v1.train.GradientDescentOptimizer(0.01))


@pytest.mark.parametrize("base", [SessionRunHook, v1.train.SessionRunHook])
def test_a_hook_gets_all_events_and_may_stop(base):
    events = []

    class Watch(base):
        def begin(self):
            events.append("begin")

        def after_create_session(self, session, coord):
            events.append("created")

        def before_run(self, run_context):
            return SessionRunArgs({"loss": "loss", "both": ["x_x", "y"]})

        def after_run(self, run_context, run_values):
            results = run_values.results
            x, y = results["both"]
            events.append((x.shape, y.shape, float(results["loss"]) > 0))
            if len(events) == 4:
                run_context.request_stop()

        def end(self, session):
            events.append("end")

    estimator = Estimator(sgd, "run", few_logs())
    estimator.train(data(3, num_epochs=None), [Watch()], steps=9)
    assert events == ["begin", "created", ((3,), (3,), True), ((3,), (3,), True), "end"]
    assert estimator.get_variable_value("global_step") == 2


def test_the_usual_hooks(capfd):
    shown = []
    hooks = [
        LoggingTensorHook({"the loss": "loss"}, every_n_iter=2, formatter=shown.append),
        LoggingTensorHook(["loss"], every_n_iter=5),
        CheckpointSaverHook("elsewhere", save_steps=3),
        StepCounterHook(4),
        NanTensorHook("loss"),
    ]
    estimator = Estimator(sgd, "run", few_logs())
    estimator.train(data(3, num_epochs=None), [*hooks, StopAtStepHook(last_step=6)], steps=20)
    estimator.train(data(3, num_epochs=None), [StopAtStepHook(num_steps=2)], steps=20)
    assert estimator.get_variable_value("global_step") == 8
    assert [list(each) for each in shown] == [["the loss"]] * 3
    assert "loss = " in capfd.readouterr().err
    other = Estimator(sgd, "elsewhere", few_logs())
    assert other.get_variable_value("global_step") == 6


def test_nan_may_end_training_without_an_error():
    def model_fn(features, labels, mode):
        spec = sgd(features, labels, mode)
        v1.identity(0 * labels / 0, name="ratio")
        return spec

    estimator = Estimator(model_fn, "run", few_logs())
    estimator.train(data(3), [NanTensorHook("ratio", fail_on_nan_loss=False)], steps=3)
    assert estimator.get_variable_value("global_step") == 1
    with pytest.raises(FloatingPointError, match="'ratio' is not finite"):
        estimator.train(data(3), [NanTensorHook("ratio")], steps=3)


def test_a_spec_has_hooks_of_its_own():
    def model_fn(features, labels, mode):
        spec = sgd(features, labels, mode)
        hooks = [StopAtStepHook(num_steps=1)]
        return EstimatorSpec(mode, None, spec.loss, spec.train_op, training_hooks=hooks)

    estimator = Estimator(model_fn, "run", few_logs())
    estimator.train(data(3), steps=3)
    assert estimator.get_variable_value("global_step") == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hooks_that_need_a_session_are_refused_with_ours():
    with pytest.raises(TypeError, match="use towerpack.estimator.StopAtStepHook"):
        as_callback(v1.train.StopAtStepHook(num_steps=1))
    with pytest.raises(TypeError, match="received SummarySaverHook .* use a towerpack Callback"):
        as_callback(v1.train.SummarySaverHook(save_steps=1, summary_op=1))
    with pytest.raises(TypeError, match="write it with \\(\\)"):
        as_callback(StopAtStepHook)
    with pytest.raises(TypeError, match="expected a Callback or a SessionRunHook"):
        as_callback(np.zeros)
    saver = ModelSaver()
    assert as_callback(saver) is saver
    for kind in (StopAtStepHook, CheckpointSaverHook):
        with pytest.raises((TypeError, ValueError)):
            kind()


def test_fetches_are_names():
    class Watch(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs(3)

    with pytest.raises(TypeError, match="expected names of tensors as fetches of Watch"):
        Estimator(sgd, "run", few_logs()).train(data(3), [Watch()], steps=1)

"""The Estimator interface of TensorFlow 1: a `model_fn`, an `input_fn`, and a model directory.

    import towerpack.estimator as learn

    estimator = learn.Estimator(model_fn, "train_log/model")
    estimator.train(learn.inputs.numpy_input_fn({"x": x}, y, num_epochs=10))
    print(estimator.evaluate(learn.inputs.numpy_input_fn({"x": x}, y)))

The modules have the names that users of `tf.estimator` and `tf.contrib.learn` know: `inputs` and
`io`, `export`, `feature_column`. The names in `__all__` are also those of `towerpack`.
"""

from towerpack.estimator import feature_column as feature_column
from towerpack.estimator import inputs, serving
from towerpack.estimator.canned import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
)
from towerpack.estimator.estimator import Estimator
from towerpack.estimator.hooks import (
    CheckpointSaverHook,
    LoggingTensorHook,
    NanTensorHook,
    SessionRunArgs,
    SessionRunHook,
    StepCounterHook,
    StopAtStepHook,
)
from towerpack.estimator.inputs import numpy_input_fn, pandas_input_fn
from towerpack.estimator.run_config import RunConfig, WarmStartSettings
from towerpack.estimator.spec import EstimatorSpec, ModeKeys, ModelFnOps
from towerpack.estimator.train_evaluate import EvalSpec, TrainSpec, train_and_evaluate

io, export = inputs, serving

__all__ = [
    "CheckpointSaverHook",
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "LinearClassifier",
    "LinearRegressor",
    "LoggingTensorHook",
    "ModeKeys",
    "ModelFnOps",
    "NanTensorHook",
    "RunConfig",
    "SessionRunArgs",
    "SessionRunHook",
    "StepCounterHook",
    "StopAtStepHook",
    "TrainSpec",
    "WarmStartSettings",
    "numpy_input_fn",
    "pandas_input_fn",
    "train_and_evaluate",
]

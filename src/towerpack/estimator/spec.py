"""What a model function returns: predictions, loss, and how to train and evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from towerpack._tensorflow import tf, v1


class ModeKeys:
    """What a model function is called for. `INFER` is the older name of `PREDICT`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = INFER = "infer"


@dataclass(frozen=True)
class EstimatorSpec:
    """What a model function builds for one mode.

    Args:
        predictions: a tensor, or a dict of tensors, with a row for each sample.
        loss: the scalar that is minimized; needed except for prediction.
        train_op: what `minimize` or `apply_gradients` of an optimizer of `tf.compat.v1.train`
            returned, also grouped with other operations.
        eval_metric_ops: a dict by name of Keras metrics that `update_state` was called on, of pairs
            `(value, update)` as `tf.compat.v1.metrics` gives them, or of tensors, which are
            averaged over the samples.
        export_outputs: further signatures of an export: a dict by name of dicts of tensors.
        training_hooks: callbacks or session hooks of this model.
        optimizer: in place of `train_op`, any optimizer of towerpack, Keras or
            `tf.compat.v1.train`, or a function that makes one and is called once; or a dict of
            them by the first part of the variables' names.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    export_outputs: Mapping[str, Any] | None = None
    training_hooks: Sequence[Any] = ()
    optimizer: Any = None

    def named_predictions(self) -> dict[str, Any]:
        """The predictions by key; a single tensor has the key 'predictions'."""
        if isinstance(self.predictions, Mapping):
            return dict(self.predictions)
        return {} if self.predictions is None else {"predictions": self.predictions}


class ModelFnOps(EstimatorSpec):
    """The name of `EstimatorSpec` in `tf.contrib.learn`."""


def checked(spec: Any, mode: str) -> EstimatorSpec:
    """The spec, if it has what the mode needs."""
    if not isinstance(spec, EstimatorSpec):
        raise TypeError(
            f"expected the model function to return an EstimatorSpec, received {spec!r}; write "
            "return EstimatorSpec(mode, predictions=..., loss=..., train_op=...)"
        )
    if mode == ModeKeys.PREDICT and spec.predictions is None:
        raise ValueError("expected EstimatorSpec(predictions=...) for prediction, received none")
    if mode != ModeKeys.PREDICT and spec.loss is None:
        raise ValueError(f"expected EstimatorSpec(loss=...) in mode {mode!r}, received none")
    if mode == ModeKeys.TRAIN and (spec.train_op is None) == (spec.optimizer is None):
        raise ValueError(
            "expected either train_op= or optimizer= in the EstimatorSpec for training: "
            "train_op=optimizer.minimize(loss) of tf.compat.v1.train, or optimizer=Adam(...)"
        )
    for key, prediction in spec.named_predictions().items():
        if not tf.is_tensor(prediction):
            raise TypeError(f"expected a tensor as the prediction {key!r}, received {prediction!r}")
    return spec


def is_optimizer(value: Any) -> bool:
    """Whether this is an optimizer of TensorFlow 1, which must be applied in its own trace."""
    return isinstance(value, v1.train.Optimizer)

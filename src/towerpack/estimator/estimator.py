"""Estimator: trains, evaluates, predicts and exports the model of a function."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import (
    Callback,
    GraphSummary,
    MergeAllSummaries,
    ModelSaver,
    MovingAverageSummary,
    StopAt,
    ThroughputTracker,
)
from towerpack.checkpoint import SmartInit, get_checkpoint_path, load_checkpoint_vars
from towerpack.core import logger
from towerpack.core.similar import nearest_first
from towerpack.estimator.evaluation import Evaluation
from towerpack.estimator.hooks import HookCallback, as_callback
from towerpack.estimator.inputs import InputData
from towerpack.estimator.model import EstimatorStep, ModelTower
from towerpack.estimator.run_config import RunConfig, WarmStartSettings, as_warm_start
from towerpack.estimator.serving import ServingInput
from towerpack.estimator.spec import ModeKeys
from towerpack.export import ModelExporter
from towerpack.input_source.flow_input import FlowInput
from towerpack.keras.data import Form
from towerpack.keras.training import run_directory
from towerpack.monitor import JSONWriter, RunRecord, ScalarPrinter, TFEventWriter
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.tower import TowerFunc, TracedTower, VariableStore
from towerpack.train import SingleCostTrainer
from towerpack.train.resume import AUTO, ResumedRun, find_run

NO_LIMIT = 1 << 40  # steps or epochs: more than any run has


class Estimator:
    """Trains, evaluates, predicts and exports the model that `model_fn` builds.

    `model_fn(features, labels, mode)` returns an `EstimatorSpec`; it may also take `params` and
    `config`. All calls share the checkpoints in `model_dir`: `train` continues from the latest, and
    the others read it.

    A call of `train` that was interrupted, even by SIGKILL, is completed by the next one, exactly:
    with the position in the data and all variables. After a call that has ended, the next one
    begins its data anew.

    Args:
        model_dir: the directory of checkpoints and logs; by default a new temporary one.
        params: a dict that is passed to `model_fn` and `input_fn`.
        warm_start_from: `WarmStartSettings`, or a checkpoint, for the weights of a new model.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: WarmStartSettings | str | Path | None = None,
    ):
        if not callable(model_fn):
            raise TypeError(f"expected a function as model_fn, received {model_fn!r}")
        self.config = config or RunConfig()
        given = [str(d) for d in (model_dir, self.config.model_dir) if d is not None]
        if len(set(given)) > 1:
            raise ValueError(f"expected one model_dir, received {given[0]} and {given[1]}")
        self.model_dir = given[0] if given else tempfile.mkdtemp(prefix="estimator-")
        if not given:
            logger.warning("there is no model_dir, so %s is used", self.model_dir)
        self.config = self.config.replace(model_dir=self.model_dir)
        self._model_fn, self.params = model_fn, dict(params or {})
        self._warm_start = as_warm_start(warm_start_from)
        self._optional: dict[str, Any] = {"params": self.params, "config": self.config}

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
    ) -> Estimator:
        """Trains `steps` more steps, or up to the global step `max_steps`, or to the data's end.

        An interrupted call is completed, so its `steps` count from where it began.

        Args:
            hooks: session hooks, or callbacks of towerpack.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("expected steps or max_steps, received both")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value < 1:
                raise ValueError(f"expected a positive {name}, received {value}")
        if self.config.tf_random_seed is not None:
            tf.keras.utils.set_random_seed(self.config.tf_random_seed)
        trainer = self.config.make_trainer()
        with run_directory(self.model_dir), trainer:
            run = find_run(AUTO)
            if run is None and trainer.is_chief and self.latest_checkpoint() is not None:
                raise ValueError(
                    f"expected checkpoints of an Estimator of towerpack in {self.model_dir}, "
                    "received others, which do not contain the state of a run. Choose another "
                    "model_dir, and pass warm_start_from= for their weights"
                )
            call = TrainCall(trainer, run, self.config.log_step_count_steps)
            if max_steps is not None and call.step >= max_steps:
                logger.info("step %d is reached already, of %d", call.step, max_steps)
                return self
            target = max_steps or (call.began + steps if steps is not None else None)
            self._train(trainer, run, call, input_fn, list(hooks or ()), target)
        return self

    fit = train

    def _train(
        self,
        trainer: SingleCostTrainer,
        run: ResumedRun | None,
        call: TrainCall,
        input_fn: Callable[..., Any],
        hooks: list[Any],
        target: int | None,
    ) -> None:
        data = self.input_data(input_fn, ModeKeys.TRAIN)
        if target is None and data.endless:
            raise ValueError("expected steps or max_steps, because this input never ends")
        source, model = data.source(), ModelTower(self._model_fn, data.form, **self._optional)
        if run is not None:
            trainer.store.seed = run.seed
        trainer.builder_class = EstimatorStep
        name = getattr(self._model_fn, "__name__", type(self).__name__)
        trainer.run_configuration = {"model": name}
        trainer.setup_graph(data.form.signature, source, model, model.make_optimizer)
        if isinstance(source, FlowInput):  # each call shuffles in an order of its own
            source.restore({"flow": {"epoch": call.began}, "batch": 0, "skip": 0})
        of_data = data.steps(trainer.batches_per_step)
        ends = [call.began + of_data] if of_data is not None else []
        call.target = min([*ends, *([target] if target is not None else [])], default=None)
        listed = [as_callback(hook) for hook in (*hooks, *model.checked_spec.training_hooks)]
        saver = EndSaver(self.config.keep_checkpoint_max, None, every=self.config.save_interval)
        callbacks = [
            *listed, call, saver, ThroughputTracker(), MovingAverageSummary(), MergeAllSummaries(),
            GraphSummary(), StopAt(call.target or NO_LIMIT),
        ]  # fmt: skip
        warm = None
        if run is None and self._warm_start is not None and trainer.is_chief:
            warm = self._warm_start.values(list(trainer.store.trainable()))
        trainer.train(
            callbacks,
            [TFEventWriter(), JSONWriter(), ScalarPrinter(), RunRecord()],
            steps_per_epoch=self.config.log_step_count_steps,
            max_epoch=NO_LIMIT,
            session_init=run or SmartInit(warm),
        )
        call.ended = True
        if trainer.is_chief:
            saver.save_end()
        for callback in listed:
            if isinstance(callback, HookCallback):
                callback.finish()

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: None = None,
        checkpoint_path: str | Path | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """The loss, the metrics and `global_step` on the data, or on its first `steps` batches.

        `Evaluation` says how they are averaged. `name` appears in the log.
        """
        without_hooks(hooks)
        data = self.input_data(input_fn, ModeKeys.EVAL)
        weights = self._checkpoint(checkpoint_path)
        results = self.evaluation(data.form).run(weights, data.batches(steps))
        logger.info("evaluation%s: %s", f" {name}" if name else "", results)
        return results

    def input_data(self, input_fn: Callable[..., Any], mode: str) -> InputData:
        """What the input function returns for a mode."""
        return InputData(input_fn, mode, **self._optional)

    def evaluation(self, form: Form) -> Evaluation:
        """The model traced for evaluation on batches of this form."""
        return Evaluation(ModelTower(self._model_fn, form, ModeKeys.EVAL, **self._optional), form)

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: None = None,
        checkpoint_path: str | Path | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields the predictions of each sample, in the order of the data.

        They are dicts of arrays by key, or arrays if the model function gives a single tensor.

        Args:
            predict_keys: only these.
            yield_single_examples: with False, yields whole batches.
        """
        without_hooks(hooks)
        data = self.input_data(input_fn, ModeKeys.PREDICT)
        model = self._prediction_model(data.form)
        names = model.names_of("predictions")
        if predict_keys is not None:
            chosen = [predict_keys] if isinstance(predict_keys, str) else list(predict_keys)
            unknown = [key for key in chosen if key not in names]
            if unknown:
                raise KeyError(
                    f"no prediction is named {unknown[0]!r}; there are "
                    f"{nearest_first(unknown[0], names)}"
                )
            names = {key: names[key] for key in chosen}
        config = self._predict_config(model, data.form, list(names.values()), checkpoint_path)
        single = not isinstance(model.checked_spec.predictions, Mapping)
        predictor, keys = OfflinePredictor(config), None if single else list(names)
        return predictions(predictor, data.batches(), keys, yield_single_examples)

    def export_saved_model(
        self,
        export_dir_base: str | Path,
        serving_input_receiver_fn: Any,
        checkpoint_path: str | Path | None = None,
        probe: Any = None,
    ) -> str:
        """Exports the model with its latest weights, to a new directory in `export_dir_base`.

        Returns its path, which ends with the time in seconds. The export is loaded again and
        compared with the model, as all of towerpack's exports are.

        Args:
            serving_input_receiver_fn: a dict of `tf.TensorSpec`s by feature, or a function that
                returns a `ServingInputReceiver`.
            probe: an example of a request, arrays by key, to compare the export on; needed for
                features of text whose values are not known from `serving_input_receiver_fn`.
        """
        serving = ServingInput(serving_input_receiver_fn)
        model = self._prediction_model(serving.form)
        outputs = model.names_of("predictions")
        config = self._predict_config(model, serving.form, list(outputs.values()), checkpoint_path)
        further = {
            name: serving.signature(model.names_of(f"exports/{name}"))
            for name in model.checked_spec.export_outputs or {}
        }
        seconds = int(time.time())
        while (path := Path(export_dir_base, str(seconds))).exists():
            seconds += 1
        exporter = ModelExporter(
            config, signature=serving.signature(outputs), probe=probe or serving.probe
        )
        exporter.export_serving(path, signatures=further)
        return str(path)

    export_savedmodel = export_saved_model

    def latest_checkpoint(self) -> str | None:
        """The latest checkpoint in the `model_dir`; None before training."""
        try:
            return str(get_checkpoint_path(self.model_dir))
        except FileNotFoundError:
            return None

    def get_variable_names(self) -> list[str]:
        """The names of all variables in the latest checkpoint."""
        return sorted(load_checkpoint_vars(self._checkpoint()))

    def get_variable_value(self, name: str) -> np.ndarray:
        """The value of a variable in the latest checkpoint."""
        values = load_checkpoint_vars(self._checkpoint())
        if name not in values:
            raise KeyError(
                f"no variable is named {name!r}; the nearest are {nearest_first(name, values)}"
            )
        return values[name]

    def _checkpoint(self, path: str | Path | None = None) -> str:
        found = str(path) if path is not None else self.latest_checkpoint()
        if found is None:
            raise ValueError(f"there is no checkpoint in {self.model_dir}; call train() first")
        return found

    def _prediction_model(self, form: Form) -> ModelTower:
        """The model for prediction, traced once so that the names of its outputs are known."""
        model = ModelTower(self._model_fn, form, ModeKeys.PREDICT, **self._optional)
        TracedTower(TowerFunc(model, form.signature), VariableStore())
        return model

    def _predict_config(
        self, model: ModelTower, form: Form, outputs: list[str], checkpoint: str | Path | None
    ) -> PredictConfig:
        return PredictConfig(
            tower_func=TowerFunc(model, form.signature),
            output_names=outputs,
            session_init=self._checkpoint(checkpoint),
        )


class TrainCall(Callback):
    """One call of `train`: where it begins, and in checkpoints, whether it has ended.

    It also places the epochs of the trainer: one is `length` steps, counted from step 0.
    """

    def __init__(self, trainer: SingleCostTrainer, run: ResumedRun | None, length: int):
        self.target: int | None = None
        self.ended = False
        for point in run.points if run is not None else ():
            state, step = point.state, point.state["global_step"]
            state["epoch_num"], state["local_step"] = -(-step // length), step % length - 1
            state["steps_per_epoch"] = length
            if state["callbacks"].get(str(self), {"ended": True})["ended"]:
                state["input"] = None  # the data begins anew
        new: dict[str, Any] = {"global_step": 0, "callbacks": {}}
        latest = new if run is None else run.points[0].state
        found = {"step": latest["global_step"], **latest["callbacks"].get(str(self), {})}
        found = trainer.ranks.from_chief(found)
        self.step = found["step"]
        self.began = self.step if found.get("ended", True) else found["began"]

    def _state(self) -> dict[str, Any]:
        reached = self.target is not None and self.global_step >= self.target
        return {"began": self.began, "ended": self.ended or reached}


class EndSaver(ModelSaver):
    """Also saves the end of a call of `train`."""

    def save_end(self) -> None:
        self._step = None  # what was saved at this step does not say that the call has ended
        self.saver.open(self._directory)
        try:
            self._save()
        finally:
            self.saver.close()


def without_hooks(hooks: Any) -> None:
    if hooks:
        raise ValueError(
            "expected no hooks, which run in training only, received some; what a model computes "
            "in evaluation and prediction belongs to its eval_metric_ops and predictions"
        )


def predictions(
    predictor: OfflinePredictor,
    batches: Iterator[list[Any]],
    keys: list[str] | None,
    single_examples: bool,
) -> Iterator[Any]:
    """Dicts by `keys`, or single arrays without them: for each sample, or for each batch."""
    for batch in batches:
        outputs = predictor(*batch)
        if not single_examples:
            yield outputs[0] if keys is None else dict(zip(keys, outputs, strict=True))
            continue
        shapes = [np.shape(output) for output in outputs]
        if len({shape[:1] for shape in shapes}) > 1 or () in shapes:
            raise ValueError(
                f"expected predictions with a row for each sample, received shapes {shapes}; pass "
                "yield_single_examples=False"
            )
        for row in zip(*outputs, strict=True):
            yield row[0] if keys is None else dict(zip(keys, row, strict=True))

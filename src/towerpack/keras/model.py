"""A Keras model with towerpack's data and callbacks: `KerasModel.compile` and `fit`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback
from towerpack.callbacks.batches import batches_of
from towerpack.dataflow.base import DataFlow
from towerpack.input_source import InputSource, QueueInput
from towerpack.keras.events import TOWERPACK_NAMES, KerasEvents, log_unfused, separated
from towerpack.keras.ranks import KerasValidation, MetricsOfRanks
from towerpack.keras.tower import KerasTower, KerasTrainer
from towerpack.keras.validation import Validation
from towerpack.train import SingleCostTrainer
from towerpack.train.resume import find_run

keras = tf.keras


class KerasModel:
    """Trains a Keras model with towerpack: its trainers, data, callbacks, monitors, checkpoints.

    `get_model` gets a `keras.Input` for each of `input_signature` (or nothing, if it takes nothing)
    and returns a Keras model, or its outputs; a finished model may be given in its place. The data
    has the inputs followed by the targets. In the tower the cost is named `total_loss` and the
    outputs `prediction`, `prediction_1`, ...

    Logged are the means over each epoch, as Keras has them: `total_loss`, the losses of several
    outputs, the metrics; and those of `validation_data` with `validation_` before their names.

    `trainer` is any trainer of a single cost; on several devices it is the only thing to change.
    A model with a `train_step` of its own needs `KerasTrainer`, which is the default.

        model = KerasModel(get_model, [image_spec], [label_spec], flow)
        model.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
        model.fit(validation_data=test_flow, max_epoch=10)
    """

    def __init__(
        self,
        get_model: Any,
        input_signature: Sequence[Any],
        target_signature: Sequence[Any],
        input: InputSource | DataFlow,
        trainer: SingleCostTrainer | None = None,
    ) -> None:
        self.get_model = get_model
        self.input_signature, self.target_signature = list(input_signature), list(target_signature)
        self.input = input if isinstance(input, InputSource) else QueueInput(input)
        self.trainer = KerasTrainer() if trainer is None else trainer
        signature = [*self.input_signature, *self.target_signature]
        self._tower = KerasTower(self.trainer, signature, self._unpack, self._build, self._compile)
        self._compiled: dict[str, Any] | None = None
        self._copies = 0

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
    ) -> None:
        """Sets what to minimize and how; the arguments are those of `keras.Model.compile`.

        An optimizer of Keras is saved with the model, and scales the loss where the model's dtype
        policy is `mixed_float16`. `optimizer` may also be one of towerpack or of
        `tf.compat.v1.train`, which Keras does not save, or a function that makes one. A model that
        was compiled by Keras need not be compiled here.
        """
        metrics = [metrics] if isinstance(metrics, str) else metrics
        self._optimizer_given = optimizer
        self._compiled = {"loss": loss, "metrics": metrics, "loss_weights": loss_weights}

    @property
    def model(self) -> Any:
        """The Keras model that is trained, once `fit` has set it up."""
        return self._tower.model

    def setup(
        self, callbacks: Sequence[Any] = (), validation: Validation | None = None
    ) -> KerasEvents:
        """Sets up the trainer, with callbacks of Keras; `fit` does it."""
        self._tower.setup(self.input)
        if self.trainer.ranks.size > 1:
            self.trainer.register_callback(MetricsOfRanks(self._tower))
        events = KerasEvents(self._tower, callbacks, validation, names=TOWERPACK_NAMES)
        self.trainer.register_callback(events)
        return events

    def fit(
        self, validation_data: Any = None, *, resume: str | Path | None = None, **options: Any
    ) -> None:
        """Trains; `options` are those of `train_with_defaults`, as `max_epoch` and `callbacks`.

        With `resume='auto'` (or a directory) it continues from the latest checkpoint there, as
        `TrainConfig` says. Callbacks may be towerpack's and Keras'.
        """
        ours, of_keras = separated(options.pop("callbacks", ()))
        log_unfused(of_keras)
        with self.trainer:
            run = find_run(resume)
            if run is not None:
                self.trainer.store.seed = run.seed
                options["session_init"] = run
            validation = None
            on_ranks = validation_data is not None and self.trainer.ranks.size > 1
            if validation_data is not None and not on_ranks:
                batches = batches_of(validation_data)
                batches.setup([*self.input_signature, *self.target_signature])
                validation = Validation(lambda: self._passed(batches))
                ours.append(Closing(batches))
            events = self.setup(of_keras, validation)
            if on_ranks:
                count = len(self.input_signature)
                ours.insert(0, KerasValidation(self.model, validation_data, count))
            self.trainer.train_with_defaults(callbacks=ours, **options)
            events.finish()

    def _passed(self, batches: Any) -> Iterator[Any]:
        with batches.one_pass() as found:
            yield from map(self._unpack, found)

    def _unpack(self, tensors: Sequence[Any]) -> tuple[Any, Any, Any]:
        count = len(self.input_signature)
        return single(tensors[:count]), single(tensors[count:]), None

    def _build(self) -> Any:
        made = self.get_model
        inputs = [
            keras.Input(batch_shape=spec.shape, dtype=spec.dtype.name, name=spec.name)
            for spec in self.input_signature
        ]
        if not isinstance(made, keras.Model):
            parameters = inspect.signature(made).parameters.values()
            takes_inputs = any(p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters)
            made = made(*inputs) if takes_inputs else made()
        return made if isinstance(made, keras.Model) else keras.Model(inputs, made)

    def _compile(self, model: Any) -> Any:
        """Compiles the model, if that is wanted; returns the optimizer that trains it."""
        optimizer = None
        if self._compiled is not None:
            optimizer = self._new_optimizer()
            of_keras = isinstance(optimizer, keras.optimizers.Optimizer)
            model.compile(optimizer if of_keras else None, **self._compiled)
        if not model.compiled:
            raise ValueError("expected a compiled model: call compile(optimizer, loss) first")
        return optimizer if model.optimizer is None else model.optimizer

    def _new_optimizer(self) -> Any:
        """The optimizer given; another one like it for each further copy of the model."""
        given, first = self._optimizer_given, not self._copies
        self._copies += 1
        if isinstance(given, str):
            return keras.optimizers.get(given)
        if isinstance(given, keras.optimizers.Optimizer):
            return given if first else type(given).from_config(given.get_config())
        makes_one = callable(given) and not hasattr(given, "apply_gradients")
        return given() if makes_one else given


def setup_keras_trainer(
    trainer: SingleCostTrainer,
    get_model: Any,
    input_signature: Sequence[Any],
    target_signature: Sequence[Any],
    input: InputSource | DataFlow,
    optimizer: Any,
    loss: Any,
    metrics: Any = None,
    loss_weights: Any = None,
) -> KerasModel:
    """Sets up `trainer` to train a Keras model; its `train_with_defaults` is left to call."""
    model = KerasModel(get_model, input_signature, target_signature, input, trainer)
    model.compile(optimizer, loss, metrics, loss_weights)
    model.setup()
    return model


class KerasPhaseCallback(Callback):
    """Does nothing: Keras 3 receives the phase with each call. For scripts that use the name."""

    def __init__(self, isTrain: bool):
        self.isTrain = isTrain


class Closing(Callback):
    """Closes the data of the validation when training ends."""

    def __init__(self, batches: Any):
        self.batches = batches

    def _after_train(self) -> None:
        self.batches.close()


def single(tensors: Sequence[Any]) -> Any:
    """The only tensor, or all of them as a list, as Keras wants them."""
    return tensors[0] if len(tensors) == 1 else list(tensors)

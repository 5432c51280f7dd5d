"""A Keras model in a tower, with the interface that Keras users know: `compile` and `fit`."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback
from towerpack.dataflow.base import DataFlow
from towerpack.input_source import InputSource, QueueInput
from towerpack.tower import VariableStore, get_current_tower_context
from towerpack.tower.keras_layers import fresh_layer_names
from towerpack.train.builder import BuiltTower, StepBuilder
from towerpack.train.keras_callbacks import KerasMetrics, KerasValidation
from towerpack.train.resume import find_run
from towerpack.train.tower_trainer import SingleCostTrainer

keras = tf.keras

TOTAL_LOSS, PREDICTION = "total_loss", "prediction"
"""Names of tensors in the tower; further outputs are `prediction_1` and so on."""


class OwnStep(StepBuilder):
    """Leaves the updates to the `train_step` of a Keras model, if it has its own."""

    trainer: KerasTrainer

    def updates(self, inputs: Sequence[Sequence[Any]]) -> tuple[list[BuiltTower], Any]:
        if not self.trainer.own_step:
            return super().updates(inputs)
        with self.context(0) as context:
            handle = self.trainer.tower_func(*inputs[0])
        tower = BuiltTower(context, handle, inputs[0], [], [])
        return [tower], tf.cast(handle.output, tf.float32)


class KerasTrainer(SingleCostTrainer):
    """Trains on one device, also a Keras model that has a `train_step` of its own.

    Such a step takes its gradients and applies them itself; it runs in the traced step like any
    other, many in one call. `options` are those of `TowerTrainer`.
    """

    own_step = False
    builder_class = OwnStep


class KerasModel:
    """Trains a Keras model with towerpack: its trainers, data, callbacks, monitors, checkpoints.

    `get_model` gets a `keras.Input` for each of `input_signature` (or nothing, if it takes nothing)
    and returns a Keras model, or its outputs; a finished model may be given in its place. The data
    has the inputs followed by the targets. In the tower the cost is named `total_loss` and the
    outputs `prediction`, `prediction_1`, ...

    Logged are the means over each epoch, as Keras has them: `total_loss`, the losses of several
    outputs, the metrics; and those of `validation_data` with `validation_` before their names. Of a
    `train_step` of the model's own it is what the last step returned.

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
        if not isinstance(self.trainer, SingleCostTrainer):
            raise TypeError(f"expected a trainer of a single cost, received {trainer!r}")
        self._models: dict[VariableStore, Any] = {}
        self._optimizers: dict[VariableStore, Any] = {}
        self._loss_mean = keras.metrics.Mean(name=TOTAL_LOSS)  # over the epoch
        self._compiled: dict[str, Any] | None = None
        self._last_logs: dict[str, Any] = {}

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
        return self._models[self.trainer.store]

    def setup(self) -> None:
        """Sets up the trainer; `fit` does it."""
        self.trainer.setup_graph(
            [*self.input_signature, *self.target_signature],
            self.input,
            self._tower,
            self._optimizer,
        )
        self.trainer.register_callback(KerasMetrics(self._reset, self._results))

    def fit(
        self, validation_data: Any = None, *, resume: str | Path | None = None, **options: Any
    ) -> None:
        """Trains; `options` are those of `train_with_defaults`, as `max_epoch` and `callbacks`.

        With `resume='auto'` (or a directory) it continues from the latest checkpoint there, as
        `TrainConfig` says.
        """
        with self.trainer:
            run = find_run(resume)
            if run is not None:
                self.trainer.store.seed = run.seed
                options["session_init"] = run
            self.setup()
            callbacks = list(options.pop("callbacks", ()))
            if validation_data is not None:
                evaluate = KerasValidation(self.model, validation_data, len(self.input_signature))
                callbacks.insert(0, evaluate)
            self.trainer.train_with_defaults(callbacks=callbacks, **options)

    def _tower(self, *tensors: Any) -> Any:
        context = get_current_tower_context()
        if context is None:
            raise RuntimeError("a tower function must be called inside a TowerContext")
        count = len(self.input_signature)
        x, y = single(tensors[:count]), single(tensors[count:])
        model = self._model_of(context.store)
        if context.is_training and has_own_step(model):
            return self._own_step(model, context.store, x, y)
        predictions = model(x, training=context.is_training)
        for number, prediction in enumerate(tf.nest.flatten(predictions)):
            tf.identity(prediction, name=f"{PREDICTION}_{number}" if number else PREDICTION)
        with apart(context.store):
            loss = model.compute_loss(x, y, predictions, training=context.is_training)
            # In a replica Keras gives its share of a sum; towers are averaged.
            loss *= tf.distribute.get_strategy().num_replicas_in_sync
            if context.is_main_training_tower:
                batch = tf.shape(tensors[0])[0]
                self._loss_mean.update_state(loss, sample_weight=batch)
                model.compute_metrics(x, y, predictions)
        self._keep_local(context.store, model)
        return tf.identity(loss, name=TOTAL_LOSS)

    def _own_step(self, model: Any, store: VariableStore, x: Any, y: Any) -> Any:
        with apart(store):
            logs = model.train_step((x, y))
        self._keep_local(store, model)
        if not isinstance(logs, dict) or not logs:
            raise TypeError(f"expected train_step to return a dict of numbers, received {logs!r}")
        for name, value in logs.items():
            last = store.make(f"logs/{name}", lambda: tf.zeros([]), trainable=False, local=True)
            last.assign(tf.cast(value, tf.float32))
            self._last_logs[name] = last
        return tf.identity(logs.get("loss", next(iter(logs.values()))), name=TOTAL_LOSS)

    def _keep_local(self, store: VariableStore, model: Any) -> None:
        """Registers the state of the metrics in the store, outside of checkpoints."""
        for variable in [*model.metrics_variables, *self._loss_mean.variables]:
            store.adopt(f"metrics/{variable.path}", variable.value, local=True)

    def _reset(self) -> None:
        self.model.reset_metrics()
        self._loss_mean.reset_state()

    def _results(self) -> dict[str, Any]:
        """What to log of an epoch at its end."""
        if self._last_logs:  # means over the epoch, if they are results of Keras metrics
            return self._last_logs
        return {**self.model.get_metrics_result(), "loss": self._loss_mean.result()}

    def _optimizer(self) -> Any:
        """Called once for each set of variables, outside of any trace."""
        store = VariableStore.current()
        model = self._model_of(store)
        if store not in self._optimizers:
            raise ValueError(
                f"{type(self.trainer).__name__} needs a model for each tower, but received a "
                "finished one. Pass a function that makes it as get_model, or use "
                "SyncMultiGPUTrainerParameterServer, whose towers share variables"
            )
        if has_own_step(model):
            if not isinstance(self.trainer, KerasTrainer):
                raise ValueError(
                    f"{type(model).__name__} has a train_step of its own, which runs with "
                    f"KerasTrainer, on one device; received {type(self.trainer).__name__}"
                )
            self.trainer.own_step = True
            return model.optimizer
        return self._optimizers[store]

    def _new_optimizer(self) -> Any:
        """The optimizer given; another one like it for each further copy of the model."""
        given = self._optimizer_given
        if isinstance(given, str):
            return keras.optimizers.get(given)
        if isinstance(given, keras.optimizers.Optimizer):
            return given if not self._models else type(given).from_config(given.get_config())
        makes_one = callable(given) and not hasattr(given, "apply_gradients")
        return given() if makes_one else given

    def _model_of(self, store: VariableStore) -> Any:
        """The Keras model whose variables are in this store, made at the first call."""
        if store not in self._models:
            with tf.init_scope(), store.scope(), fresh_layer_names():
                model = self._build(store)
                for variable in model.variables:  # if it was made elsewhere
                    store.adopt(variable.path, variable.value)
                if not self._has(model):
                    with store.aside():
                        self._optimizers[store] = self._compile(model)
                self._models[store] = model
        return self._models[store]

    def _has(self, model: Any) -> bool:
        return any(model is known for known in self._models.values())

    def _build(self, store: VariableStore) -> Any:
        inputs = [
            keras.Input(batch_shape=spec.shape, dtype=spec.dtype.name, name=spec.name)
            for spec in self.input_signature
        ]
        made = self.get_model
        if not isinstance(made, keras.Model):
            parameters = inspect.signature(made).parameters.values()
            takes_inputs = any(p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters)
            made = made(*inputs) if takes_inputs else made()
        if not isinstance(made, keras.Model):
            return keras.Model(inputs, made)
        if not made.built:
            with store.aside():  # Keras makes the weights after it has left the layers' scopes
                made(single(inputs))
        return made

    def _compile(self, model: Any) -> Any:
        """Compiles the model, if that is wanted; returns the optimizer that trains it."""
        optimizer = None
        if self._compiled is not None:
            optimizer = self._new_optimizer()
            of_keras = isinstance(optimizer, keras.optimizers.Optimizer)
            model.compile(optimizer if of_keras else None, **self._compiled)
        if not model.compiled:
            raise ValueError("expected a compiled model: call compile(optimizer, loss) first")
        if model.optimizer is None:
            return optimizer
        if not model.optimizer.built:
            # In the order in which Keras restores its variables when a saved model is loaded.
            model.optimizer.build(model.trainable_variables)
        return model.optimizer


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


def single(tensors: Sequence[Any]) -> Any:
    """The only tensor, or all of them as a list, as Keras wants them."""
    return tensors[0] if len(tensors) == 1 else list(tensors)


def has_own_step(model: Any) -> bool:
    return type(model).train_step is not keras.Model.train_step


@contextlib.contextmanager
def apart(store: VariableStore) -> Iterator[None]:
    """While open, variables (of metrics) are made outside of the trace and of the store."""

    def creator(next_creator: Callable[..., Any], **options: Any) -> Any:
        with tf.init_scope():
            return next_creator(**options)

    with store.aside(), tf.variable_creator_scope(creator):
        yield


__all__ = [
    "KerasModel",
    "KerasPhaseCallback",
    "KerasTrainer",
    "setup_keras_trainer",
]

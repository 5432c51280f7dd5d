"""A Keras model as a tower: its loss, its metrics, its optimizer, its own train_step if it has one.

Everything here calls public methods of `keras.Model` (`__call__`, `compute_loss`,
`compute_metrics`, `train_step`), so that a model which overrides them trains as it does in Keras.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.input_source import InputSource
from towerpack.tower import VariableStore, get_current_tower_context
from towerpack.tower.keras_layers import fresh_layer_names
from towerpack.train import SingleCostTrainer
from towerpack.train.builder import BuiltTower, StepBuilder
from towerpack.train.devices import AsyncTowers

keras = tf.keras

TOTAL_LOSS, PREDICTION = "total_loss", "prediction"
"""Names of tensors in the tower; further outputs are `prediction_1` and so on."""

Unpack = Callable[[Sequence[Any]], tuple[Any, Any, Any]]
"""From the tensors of a batch to (x, y, sample_weight), as Keras has them."""


class KerasStep(StepBuilder):
    """Runs the `train_step` of a model that has its own; adds up the metrics of all towers."""

    def __init__(self, keras_tower: KerasTower, *arguments: Any):
        super().__init__(*arguments)
        self.keras_tower = keras_tower

    def updates(self, inputs: Sequence[Sequence[Any]]) -> tuple[list[BuiltTower], Any]:
        if not self.keras_tower.own_step:
            towers, cost = super().updates(inputs)
            self.keras_tower.collect_metrics()
            return towers, cost
        with self.context(0) as context:
            handle = self.trainer.tower_func(*inputs[0])
        tower = BuiltTower(context, handle, inputs[0], [], [])
        return [tower], tf.cast(handle.output, tf.float32)


class KerasTrainer(SingleCostTrainer):
    """Trains on one device, also a Keras model that has a `train_step` of its own.

    Such a step takes its gradients and applies them itself; it runs in the traced step like any
    other, many in one call. `options` are those of `TowerTrainer`.
    """


class KerasTower:
    """The tower function and the optimizers of a Keras model for `trainer`.

    `make` is called once for each set of variables and returns a model, built or not. `compiled`
    gets it and returns its optimizer. The first model is the one that callbacks and the user see.
    """

    def __init__(
        self,
        trainer: SingleCostTrainer,
        signature: Sequence[Any],
        unpack: Unpack,
        make: Callable[[], Any],
        compiled: Callable[[Any], Any],
    ):
        if not isinstance(trainer, SingleCostTrainer):
            raise TypeError(f"expected a trainer of a single cost, received {trainer!r}")
        self.trainer, self.signature = trainer, list(signature)
        self.unpack, self._make, self._compiled = unpack, make, compiled
        self.own_step = False
        self._models: dict[VariableStore, Any] = {}
        self._optimizers: dict[VariableStore, Any] = {}
        self._loss_mean = keras.metrics.Mean(name="loss")  # over the epoch, of all towers
        self._last_logs: dict[str, Any] = {}  # of a train_step of the model's own

    @property
    def model(self) -> Any:
        """The model that is trained; the towers may have copies of it."""
        return self._models[self.trainer.store]

    def setup(self, source: InputSource) -> None:
        """Sets up the trainer."""
        self.trainer.builder_class = functools.partial(KerasStep, self)  # type: ignore[assignment]
        self.trainer.setup_graph(self.signature, source, self._tower, self._optimizer)

    def reset_metrics(self) -> None:
        """Begins an epoch."""
        self.model.reset_metrics()
        self._loss_mean.reset_state()

    def results(self) -> dict[str, Any]:
        """What Keras logs of the epoch so far."""
        of_model = self.model.get_metrics_result()
        if self.own_step:
            return of_model if of_model.keys() == self._last_logs.keys() else self._last_logs
        own_list = type(self.model).metrics is not keras.Model.metrics  # may leave out the loss
        return of_model if own_list else {**of_model, "loss": self._loss_mean.result()}

    def metrics_variables(self) -> list[Any]:
        """The variables of all metrics; a checkpoint within an epoch has their values."""
        last = [v for v in self._last_logs.values() if isinstance(v, tf.Variable)]
        return [*self.model.metrics_variables, *self._loss_mean.variables, *last]

    def collect_metrics(self) -> None:
        """Adds to the step: metrics that towers with own variables have counted go to the first."""
        main, *others = (self._models[store].metrics_variables for store in self.trainer.stores)
        for metrics in others:
            for total, part in zip(main, metrics, strict=True):
                total.assign(total + part)
                part.assign(tf.zeros_like(part))

    def _tower(self, *tensors: Any) -> Any:
        context = get_current_tower_context()
        if context is None:
            raise RuntimeError("a tower function must be called inside a TowerContext")
        x, y, weight = self.unpack(tensors)
        model = self._model_of(context.store)
        if context.is_training and has_own_step(model):
            return self._run_own_step(model, context.store, x, y, weight)
        predictions = model(x, training=context.is_training)
        for number, prediction in enumerate(tf.nest.flatten(predictions)):
            tf.identity(prediction, name=f"{PREDICTION}_{number}" if number else PREDICTION)
        with context.store.apart():
            loss = loss_of(model, x, y, predictions, weight, context.is_training)
            # In a replica Keras gives its share of a sum; towers are averaged.
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            if replicas > 1:
                _check_axes(predictions)
            loss *= replicas
            in_step = not isinstance(self.trainer.replication, AsyncTowers)
            if context.is_training and (in_step or context.index == 0):
                batch = tf.shape(tensors[0])[0]
                self._loss_mean.update_state(loss, sample_weight=batch)
                model.compute_metrics(x, y, predictions, weight)
        self._keep_local(context.store, model)
        return tf.identity(loss, name=TOTAL_LOSS)

    def _run_own_step(self, model: Any, store: VariableStore, x: Any, y: Any, weight: Any) -> Any:
        with store.apart():
            logs = model.train_step(keras.utils.pack_x_y_sample_weight(x, y, weight))
        self._keep_local(store, model)
        if not isinstance(logs, dict) or not logs:
            raise TypeError(f"expected train_step to return a dict of numbers, received {logs!r}")
        for name, value in logs.items():
            value = tf.convert_to_tensor(value)
            zeros = functools.partial(tf.zeros, value.shape)
            last = store.make(f"logs/{name}", zeros, trainable=False, local=True)
            last.assign(tf.cast(value, tf.float32))
            self._last_logs[name] = last
        loss = tf.convert_to_tensor(logs.get("loss", next(iter(logs.values()))))
        return tf.identity(loss, name=TOTAL_LOSS)

    def _keep_local(self, store: VariableStore, model: Any) -> None:
        """Registers the state of the metrics in the store, outside of checkpoints."""
        if store is self.trainer.store:
            for variable in [*model.metrics_variables, *self._loss_mean.variables]:
                store.adopt(f"metrics/{variable.path}", variable.value, local=True)

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
            self.own_step = True
            return model.optimizer
        return self._optimizers[store]

    def _model_of(self, store: VariableStore) -> Any:
        """The Keras model whose variables are in this store, made at the first call."""
        if store not in self._models:
            with tf.init_scope(), store.scope(), fresh_layer_names():
                model = self._make()
                if not model.built:
                    with store.aside():  # Keras makes the weights after it has left their scopes
                        build_by_call(model, self.signature, self.unpack)
                for variable in self._in_order(model.variables):  # if it was made elsewhere
                    store.adopt(variable.path, variable.value)
                if not any(model is known for known in self._models.values()):
                    with store.aside():
                        self._optimizers[store] = self._compiled(model)
                        if model.optimizer is not None and not model.optimizer.built:
                            # In the order in which Keras restores its variables when it is loaded.
                            model.optimizer.build(model.trainable_variables)
                self._models[store] = model
        return self._models[store]

    def _in_order(self, variables: Sequence[Any]) -> list[Any]:
        """The variables of a copy in the order of the first model's: towers pair their gradients.

        Keras may list the layers of a copy in another order.
        """
        first = next(iter(self._models.values()), None)
        places = {v.path: n for n, v in enumerate(first.variables)} if first else {}
        return sorted(variables, key=lambda variable: places.get(variable.path, len(places)))


def build_by_call(model: Any, signature: Sequence[Any], unpack: Unpack) -> None:
    """Makes the weights of a model that does not know its inputs, as `fit` of Keras does."""
    specs = [tf.TensorSpec(spec.shape, spec.dtype) for spec in signature]
    call = tf.function(lambda *tensors: model(unpack(tensors)[0], training=False), autograph=False)
    call.get_concrete_function(*specs)


def loss_of(model: Any, x: Any, y: Any, predictions: Any, weight: Any, training: bool) -> Any:
    """The total loss; a model may override `compute_loss` without the newer `training`."""
    if "training" in inspect.signature(model.compute_loss).parameters:
        return model.compute_loss(x, y, predictions, weight, training=training)
    return model.compute_loss(x, y, predictions, weight)


def has_own_step(model: Any) -> bool:
    return type(model).train_step is not keras.Model.train_step


def _check_axes(predictions: Any) -> None:
    """Refuses outputs of one axis: Keras takes their loss for the whole, and not for its share."""
    flat = [p for p in tf.nest.flatten(predictions) if p.shape.rank == 1]
    if flat:
        raise ValueError(
            f"expected outputs with at least two axes on several towers, received {flat[0].shape}: "
            "Keras would not divide their loss among the towers. Keep the last axis, as in Dense(1)"
        )

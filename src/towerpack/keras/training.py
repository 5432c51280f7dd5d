"""`fit`, `evaluate` and `predict`, as `keras.Model` has them, over towerpack's trainers."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import ClassFrequencies, ModelSaver
from towerpack.core import logger
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.classes import RESAMPLE, ClassWeight
from towerpack.keras.classes import counted, weights_and_counts
from towerpack.keras.data import passes, split, training_data
from towerpack.keras.events import KerasEvents, log_unfused, separated
from towerpack.keras.ranks import MetricsOfRanks
from towerpack.keras.tower import KerasTower, KerasTrainer
from towerpack.keras.validation import Validation
from towerpack.monitor import JSONWriter, RunRecord, TFEventWriter
from towerpack.tower import VariableStore
from towerpack.train import NonFiniteCost, NonFiniteWeights, SingleCostTrainer
from towerpack.train.base import steps_of_data
from towerpack.train.config import check_trainer, describe
from towerpack.train.resume import find_run

keras = tf.keras

CHECKPOINTS = 3  # that a run with a directory keeps


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: ClassWeight = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    *,
    trainer: SingleCostTrainer | None = None,
    resume: str | Path | None = None,
    logdir: str | Path | None = None,
) -> Any:
    """Trains a compiled Keras model as `model.fit` does, and returns its `History`.

    The arguments are those of `keras.Model.fit`; `x` may also be a flow, and `callbacks` may also
    be towerpack's. Weights, losses and metrics are those of `model.fit` on the same batches. In
    addition:

    Args:
        trainer: any trainer of a single cost, `KerasTrainer()` by default. A batch is divided over
            the towers of several devices.
        logdir: the directory of the run: a checkpoint after every epoch, scalars, a report.
        class_weight: also 'balanced' or 'resample', as in `ClassWeightData`. The latter draws each
            class of arrays equally often, so that an epoch is longer.
        resume: 'auto' to continue from the latest checkpoint in `logdir`, exactly; or a directory.
    """
    if not getattr(model, "compiled", False):
        raise ValueError("expected a compiled model: call model.compile(optimizer, loss) first")
    ours, of_keras = separated(callbacks or ())
    log_unfused(of_keras)
    trainer = KerasTrainer(eager=bool(model.run_eagerly)) if trainer is None else trainer
    check_trainer(trainer)
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split(x, y, sample_weight, validation_split)
    weights, counts = weights_and_counts(model, x, y, class_weight)
    data = training_data(
        x, y, sample_weight, model=model, batch_size=batch_size, steps=steps_per_epoch,
        shuffle=shuffle, class_weight=weights, resample=class_weight == RESAMPLE,
        towers=trainer.batches_per_step,
    )  # fmt: skip
    validation, classes = None, {"training": counts}
    if validation_data is not None:
        found = passes(validation_data, model=model, batch_size=validation_batch_size or batch_size)
        validation = Validation(found, validation_steps)
        if isinstance(validation_data, tuple | list) and len(validation_data) > 1:
            classes["validation"] = counted(model, validation_data[1])
    steps = steps_per_epoch or steps_of_data(data.source, trainer.batches_per_step)
    tower = KerasTower(
        trainer, data.form.signature, data.form.unpack, copies_of(model), lambda m: m.optimizer
    )
    with quiet_console(), run_directory(logdir), trainer:
        run = find_run(resume)
        if run is not None:
            trainer.store.seed = run.seed
        trainer.run_configuration = {
            "model": type(model).__name__,
            "data": describe(data.source),
        }
        tower.setup(data.source)
        if trainer.ranks.size > 1:
            trainer.register_callback(MetricsOfRanks(tower))
        if known := {name: found for name, found in classes.items() if found}:
            trainer.register_callback(ClassFrequencies(class_weight=class_weight, **known))
        events = KerasEvents(
            tower, of_keras, validation,
            validates=lambda epoch: is_due(epoch, validation_freq),
            verbose=1 if verbose == "auto" else int(verbose), epochs=epochs, steps=steps,
        )  # fmt: skip
        trainer.register_callback(events)
        in_directory = logger.get_logger_dir() is not None
        saves = any(isinstance(callback, ModelSaver) for callback in ours)
        if in_directory and (logdir or resume) and not saves:
            ours.append(ModelSaver(CHECKPOINTS))
        try:
            trainer.train(
                ours,
                [TFEventWriter(), JSONWriter(), RunRecord()] if in_directory else [],
                steps_per_epoch=steps,
                max_epoch=epochs,
                starting_epoch=initial_epoch + 1,
                session_init=run,
            )
        except (NonFiniteCost, NonFiniteWeights) as error:
            events.terminate_on_nan(error)
        events.end_epoch(put=False)  # if the data or a NaN has ended training within one
        events.finish()
    return model.history


def evaluate(model: Any, x: Any = None, y: Any = None, **options: Any) -> Any:
    """`model.evaluate`, which also accepts a flow; `options` are those of Keras."""
    if not isinstance(x, DataFlow):
        return model.evaluate(x, y, **options)
    steps, as_dict = options.pop("steps", None), options.pop("return_dict", False)
    callbacks, verbose = options.pop("callbacks", None), options.pop("verbose", "auto")
    options.pop("batch_size", None)  # a flow has batches
    if options or y is not None:
        raise TypeError(f"a flow has its targets and weights in it, received {sorted(options)}")
    listed = keras.callbacks.CallbackList(
        callbacks, add_progbar=verbose != 0, model=model,
        verbose=1 if verbose == "auto" else verbose, epochs=1, steps=steps,
    )  # fmt: skip
    result = Validation(passes(x, model=model), steps).run(model, listed)
    logs = {name: np.asarray(value)[()] for name, value in result.items()}
    if as_dict:
        return logs
    return next(iter(logs.values())) if len(logs) == 1 else list(logs.values())


def predict(model: Any, x: Any, **options: Any) -> Any:
    """`model.predict`, which also accepts a flow; `options` are those of Keras."""
    if not isinstance(x, DataFlow):
        return model.predict(x, **options)
    steps = options.pop("steps", None)
    batches = itertools.islice(passes(x, model=model)(), steps)
    outputs = [model.predict_on_batch(batch[0]) for batch in batches]
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *outputs)


def copies_of(model: Any) -> Callable[[], Any]:
    """Returns the model at the first call, then copies of it for towers with own variables."""
    made: list[Any] = []

    def make() -> Any:
        if not made:
            made.append(model)
            return model
        with VariableStore.current().aside():  # which gets them in the order of the first model's
            return copy_of(model)

    return make


def copy_of(model: Any) -> Any:
    """Another model like this one, compiled alike."""
    try:
        copy = keras.models.clone_model(model)
        copy.compile_from_config(model.get_compile_config())
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            f"this trainer needs a copy of the model for each tower, and {type(model).__name__} "
            "cannot be copied: define get_config(), register custom functions with "
            "keras.saving.register_keras_serializable, or use SyncMultiGPUTrainer, whose towers "
            "share variables"
        ) from error
    return copy


def is_due(epoch: int, validation_freq: int | list[int]) -> bool:
    """Whether the validation runs after this epoch, counted from 1."""
    if isinstance(validation_freq, int):
        return epoch % validation_freq == 0
    return epoch in validation_freq


@contextlib.contextmanager
def run_directory(logdir: str | Path | None) -> Iterator[None]:
    """While open, `logdir` is the directory of the run, if it is given."""
    if logdir is None:
        yield
        return
    logger.set_logger_dir(logdir)
    try:
        yield
    finally:
        logger.close_log_file()


@contextlib.contextmanager
def quiet_console() -> Iterator[None]:
    """While open, the console shows warnings and Keras' lines; the log file has the rest."""
    logger.debug("training by towerpack.keras.fit")  # makes the console's handler
    handlers = [
        handler
        for handler in logging.getLogger("towerpack").handlers
        if not isinstance(handler, logging.FileHandler)
    ]
    levels = [handler.level for handler in handlers]
    try:
        for handler in handlers:
            handler.setLevel(max(handler.level, logging.WARNING))
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)

"""What to train, in one object."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, Callbacks
from towerpack.checkpoint import ModelLoader
from towerpack.core import logger
from towerpack.core.cluster import is_chief
from towerpack.core.plain_settings import plain_settings
from towerpack.core.tracebacks import folds_traceback
from towerpack.dataflow.base import DataFlow
from towerpack.input_source import InputSource, apply_default_prefetch
from towerpack.models import ModelDesc
from towerpack.monitor import MonitorBase
from towerpack.monitor.run_record import plain
from towerpack.train.resume import AUTO, find_old_run, find_run


@dataclass(kw_only=True)
class TrainConfig:
    """A model, its data, what happens along the way, and for how long.

    Give either a `dataflow` or `data`, an input source; `apply_default_prefetch` decides how they
    are read. By default an epoch uses the data once: `steps_per_epoch` is the number of batches
    divided by the number of towers, each of which uses a batch in every step. The callbacks of a
    run are `callbacks` followed by `extra_callbacks`, which default to `DEFAULT_CALLBACKS()`.

    `optimizer`, an optimizer or a function that makes one, takes the place of `model.optimizer()`.

    With `resume='auto'` the same command, run again, continues from the latest checkpoint in the
    logger's directory, exactly where it was saved; `session_init` and `starting_epoch` are then for
    the first start only. A run that is finished says so and stops. It may also be a directory.
    """

    model: ModelDesc
    dataflow: DataFlow | None = None
    data: InputSource | DataFlow | None = None
    callbacks: Sequence[Callback] | Callback = ()
    extra_callbacks: Sequence[Callback] | None = None
    monitors: Sequence[MonitorBase] | None = None
    session_init: ModelLoader | Any = None
    starting_epoch: int = 1
    steps_per_epoch: int | None = None
    max_epoch: int = 99999
    resume: str | Path | None = None
    optimizer: Any = None
    settings: Any = None

    def __post_init__(self) -> None:
        if (self.dataflow is None) == (self.data is None):
            raise ValueError("expected either dataflow= or data=, one of the two")
        if isinstance(self.data, DataFlow):
            self.dataflow, self.data = self.data, None
        check_not_arrays(self.dataflow if self.data is None else self.data)
        check_model(self.model)
        if isinstance(self.callbacks, Callbacks):
            self.callbacks = self.callbacks.callbacks
        elif isinstance(self.callbacks, Callback):
            self.callbacks = [self.callbacks]
        if self.steps_per_epoch is not None and self.steps_per_epoch < 0:
            raise ValueError(f"expected steps_per_epoch >= 0, received {self.steps_per_epoch}")

    def make_optimizer(self) -> Any:
        """The optimizer of this run; called for each set of variables."""
        if self.optimizer is None:
            return self.model.optimizer()
        made = self.optimizer
        return made() if callable(made) and not hasattr(made, "apply_gradients") else made


@dataclass(kw_only=True)
class AutoResumeTrainConfig(TrainConfig):
    """A `TrainConfig` with `resume='auto'`, which also resumes from checkpoints of tensorpack.

    Those do not contain the state of the run: they give the weights, and `stats.json` beside them
    the epoch. With `always_resume=False`, a `session_init` or `starting_epoch` that was passed is
    preferred to what is in the directory.
    """

    always_resume: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.always_resume and (self.session_init is not None or self.starting_epoch != 1):
            return
        self.resume = self.resume or AUTO
        directory = logger.get_logger_dir() if self.resume == AUTO else Path(self.resume)
        # Of several ranks, only the chief loads something.
        if directory is None or not is_chief() or find_run(directory) is not None:
            return
        old = find_old_run(directory)
        if old is not None:
            self.session_init, self.starting_epoch = old


def check_not_arrays(data: Any) -> None:
    """A tuple of arrays would be taken for a flow whose datapoints are those arrays."""
    if isinstance(data, tuple | list) and data and all(hasattr(part, "shape") for part in data):
        shapes = ", ".join(str(tuple(part.shape)) for part in data)
        raise TypeError(
            f"expected a DataFlow, received {len(data)} arrays of shapes {shapes}; write "
            "dataflow=BatchData(DataFromArrays(x, y, shuffle=True), batch_size)"
        )


def check_model(model: Any) -> None:
    if isinstance(model, ModelDesc):
        return
    cure = "subclass ModelDesc and define inputs(), build_graph() and optimizer()"
    if isinstance(model, type):
        cure = f"this is a class: write {model.__name__}()"
    elif isinstance(model, tf.keras.Model):
        cure = (
            "a Keras model is trained by towerpack.keras.fit(model, x, y), by KerasModel(model, "
            "input_signature, target_signature, dataflow), or called in build_graph of a ModelDesc"
        )
    raise TypeError(f"expected a ModelDesc as model, received {type(model).__name__}; {cure}")


def check_trainer(trainer: Any) -> None:
    if isinstance(trainer, type):
        raise TypeError(
            f"expected a trainer, received the class {trainer.__name__}; write "
            f"{trainer.__name__}(), with its arguments if it has any"
        )
    if not hasattr(trainer, "setup_graph"):
        raise TypeError(
            f"expected a trainer with setup_graph(), such as SimpleTrainer(), received {trainer!r}"
        )


@folds_traceback
def launch_train_with_config(config: TrainConfig, trainer: Any) -> None:
    """Trains the model of a config with a trainer, from setting up to the last epoch.

    The same as these calls, which a user may also make himself:

        trainer.setup_graph(signature, input_source, model.build_graph, config.make_optimizer)
        trainer.setup_callbacks(callbacks, monitors)
        trainer.initialize(session_init)
        trainer.main_loop(steps_per_epoch, starting_epoch, max_epoch)
        trainer.close()
    """
    if not isinstance(config, TrainConfig):
        raise TypeError(f"expected a TrainConfig first, received {config!r}")
    check_trainer(trainer)
    run = find_run(config.resume)
    if trainer.ranks.from_chief(run is not None and run.is_finished(config.max_epoch)):
        logger.info("this run is finished: epoch %d is done", config.max_epoch)
        return
    source = apply_default_prefetch(
        config.dataflow if config.data is None else config.data, trainer
    )
    model = config.model
    with trainer:
        if run is not None:
            trainer.store.seed = run.seed
        trainer.run_configuration = {"model": type(model).__name__, "data": describe(source)}
        if config.settings is not None:
            trainer.run_configuration["settings"] = settings_as_data(config.settings)
        trainer.setup_graph(model.input_signature, source, model.build_graph, config.make_optimizer)
        trainer.train_with_defaults(
            callbacks=config.callbacks,
            extra_callbacks=config.extra_callbacks,
            monitors=config.monitors,
            steps_per_epoch=config.steps_per_epoch,
            max_epoch=config.max_epoch,
            starting_epoch=config.starting_epoch,
            session_init=run or config.session_init,
        )


def settings_as_data(settings: Any) -> Any:
    if dataclasses.is_dataclass(settings):
        return plain(plain_settings(settings))
    if isinstance(settings, Mapping):
        return plain(settings)
    raise TypeError(f"expected a dataclass or a dict as settings, received {settings!r}")


def describe(source: InputSource) -> str:
    """An input source in a few words, with its flow if it has one."""
    flow = getattr(source, "flow", None)
    return f"{type(source).__name__}({flow.label() if isinstance(flow, DataFlow) else ''})"

"""One trial of a sweep: python -m towerpack.cli.trial SWEEP_DIR NUMBER PID_OF_THE_SWEEP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from towerpack._tensorflow import tf
from towerpack.callbacks import PruneTrial
from towerpack.cli.program import load_program
from towerpack.cli.search_space import parse_space
from towerpack.core import logger
from towerpack.core.processes import killed_with_parent
from towerpack.core.settings import read_settings
from towerpack.core.similar import nearest_first
from towerpack.monitor import RunRecord
from towerpack.report.sweep import (
    best_value,
    load_sweep,
    open_study,
    running_trial,
    trial_name,
)
from towerpack.train import (
    DEFAULT_CALLBACKS,
    NonFiniteCost,
    NonFiniteWeights,
    launch_train_with_config,
)

LONGEST_ERROR = 1000  # characters of an exception that ended a trial


class NoMetricError(ValueError):
    """A trial did not log the metric of its sweep, so no other trial will."""


class NoFiniteValueError(ValueError):
    """The metric of a trial was NaN or infinite after every epoch."""


DIVERGED = (NonFiniteCost, NonFiniteWeights, NoFiniteValueError)


def main(directory: Path, number: int) -> None:
    """Trains a trial, from its last checkpoint if it has one, and stores its result."""
    sweep, study = load_sweep(directory), open_study(directory)
    trial = running_trial(study, number)
    try:
        pruned = train_trial(sweep, trial, directory / trial_name(number))
        frozen = study.get_trials(deepcopy=False)[number]
        value = best_value(frozen, sweep["maximize"])
        if value is None:
            raise no_value(sweep["metric"], directory / trial_name(number))
    except Exception as error:
        trial.set_user_attr("error", f"{type(error).__name__}: {error}"[:LONGEST_ERROR])
        trial.set_user_attr("no_metric", isinstance(error, NoMetricError))
        # The sampler learns from pruned trials, and not from those that failed.
        state = TrialState.PRUNED if isinstance(error, DIVERGED) else TrialState.FAIL
        study.tell(number, state=state)
        raise
    if pruned:
        study.tell(number, state=TrialState.PRUNED)
    else:
        study.tell(number, value)


def train_trial(sweep: dict[str, Any], trial: Any, directory: Path) -> bool:
    """Trains the program of the sweep with the values of a trial; returns whether it was pruned."""
    file = Path(sweep["file"])
    overrides = parse_space(sweep["space"]).overrides(trial.params)
    sys.argv = ["towerpack", "train", str(file), *overrides]  # the command in the run's record
    logger.set_logger_dir(directory)
    tf.keras.utils.set_random_seed(trial.user_attrs["seed"])
    program = load_program(file)
    config, trainer = program.make(read_settings(program.settings, None, overrides))
    if Path(logger.get_logger_dir() or "").resolve() != directory.resolve():
        raise ValueError(
            f"expected the run in {directory}, but {file} has set {logger.get_logger_dir()}; leave "
            "out its call of logger.set_logger_dir or logger.auto_set_dir"
        )
    pruning = PruneTrial(trial, sweep["metric"])
    extra = DEFAULT_CALLBACKS() if config.extra_callbacks is None else config.extra_callbacks
    config.extra_callbacks = [*extra, pruning]  # the last, so that every scalar was logged
    config.resume = "auto"
    launch_train_with_config(config, trainer)
    return pruning.pruned


def no_value(metric: str, directory: Path) -> ValueError:
    """The error of a trial without a finite value of the metric."""
    facts = RunRecord.load(directory) or {}
    names = [name for name in facts.get("scalars", {}) if not name.startswith("time/")]
    if metric in names:
        return NoFiniteValueError(f"{metric} was NaN or infinite after every epoch")
    return NoMetricError(
        f"expected a scalar that the run logs after an epoch as --metric, received {metric!r}; "
        f"the logged ones are {nearest_first(metric, names)}"
    )


if __name__ == "__main__":
    killed_with_parent(int(sys.argv[3]))
    main(Path(sys.argv[1]), int(sys.argv[2]))

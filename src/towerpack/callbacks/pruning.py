"""Ends a trial of a hyperparameter search that is worse than the trials before it."""

from __future__ import annotations

from typing import Any

from towerpack.callbacks.base import Callback, StopTraining, latest_scalar


class PruneTrial(Callback):
    """Reports a scalar to a trial of optuna after every epoch; stops training if it is pruned.

    `trial` is an `optuna.Trial`, and `stat` the name of a logged scalar: place this after the
    callback that logs it. The pruner of the study decides. Afterwards `pruned` is whether it did,
    so that an objective can raise `optuna.TrialPruned`. `towerpack sweep` adds this callback to
    each of its trials. An epoch that the trial already knows is not reported again, so a run that
    resumes may repeat epochs.

    >>> import optuna
    >>> def objective(trial):
    ...     pruning = PruneTrial(trial, "validation_error")
    ...     ...  # train with callbacks=[InferenceRunner(...), pruning]
    ...     if pruning.pruned:
    ...         raise optuna.TrialPruned
    """

    def __init__(self, trial: Any, stat: str):
        self.trial_of_search, self.stat = trial, stat
        self.pruned = False

    def _setup_graph(self) -> None:
        self.pruned = False
        self._seen = -1

    def _trigger(self) -> None:
        latest = latest_scalar(self, self.stat)
        if latest is None or latest[0] <= self._seen:
            return
        self._seen, value = latest
        trial = self.trial_of_search
        known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        if self.epoch_num not in known:
            trial.report(value, self.epoch_num)
        if trial.should_prune():
            self.pruned = True
            raise StopTraining(
                f"trial {trial.number} is pruned: its {self.stat} is {value:.5g} after epoch "
                f"{self.epoch_num}"
            )

    def _state(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def _restore(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]

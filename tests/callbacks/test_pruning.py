"""Pruning trials of a search by optuna."""

from __future__ import annotations

import optuna
import pytest

from tests.callbacks.training import putting, run
from towerpack.callbacks import PruneTrial


@pytest.fixture
def study():
    """One that stops what is worse than the median from the second epoch on."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(pruner=optuna.pruners.MedianPruner(1, n_warmup_steps=2))


def test_a_worse_trial_is_pruned_and_a_better_one_is_not(study):
    epochs = []
    for values in ([5, 4, 3, 2], [6, 6, 6, 6], [4, 3, 2, 1]):
        trial = study.ask()
        pruning = PruneTrial(trial, "error")
        epochs.append(run([putting(values), pruning], epochs=4).trainer.epoch_num)
        state = optuna.trial.TrialState.PRUNED if pruning.pruned else None
        study.tell(trial, None if pruning.pruned else values[-1], state)
    assert epochs == [4, 2, 4]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert study.trials[1].intermediate_values == {1: 6, 2: 6}


def test_a_resumed_trial_reports_each_epoch_once(study):
    trial = study.ask()
    values = [5, 4, 3, 2]
    whole = run([putting(values), PruneTrial(trial, "error")], epochs=3)
    # Warnings are errors, and optuna warns about a second report of an epoch.
    run([putting(values), PruneTrial(trial, "error")], epochs=4, resume=whole.saved[0])
    assert study.trials[0].intermediate_values == {1: 5, 2: 4, 3: 3, 4: 2}


def test_without_the_scalar_nothing_is_reported(study):
    trial = study.ask()
    run([PruneTrial(trial, "eror"), putting([1, 1])], epochs=2)
    assert study.trials[0].intermediate_values == {}

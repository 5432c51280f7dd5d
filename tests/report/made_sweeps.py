"""Sweeps such as `towerpack sweep` leaves them, without any training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import optuna

from towerpack.report.sweep import FORMAT, SWEEP_FILE, open_study

PARAMETERS = [
    {"key": "lr", "choices": [], "low": 1e-4, "high": 0.1, "log": True, "whole": False},
    {
        "key": "units",
        "choices": ["32", "64", "128"],
        "low": 0,
        "high": 0,
        "log": False,
        "whole": False,
    },
    {"key": "layers", "choices": [], "low": 1, "high": 4, "log": False, "whole": True},
]


def make_sweep(directory: Path, trials: int = 20, epochs: int = 12, error: str = "") -> Path:
    """A sweep with completed, pruned and failed trials, and one that is running."""
    directory.mkdir(parents=True)
    sweep = {
        "format": FORMAT,
        "file": "digits.py",
        "parameters": PARAMETERS,
        "fixed": [["batch", "128"]],
        "metric": "validation_error",
        "maximize": False,
        "prune": True,
        "seed": 0,
    }
    (directory / SWEEP_FILE).write_text(json.dumps(sweep))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = open_study(directory)
    rng = np.random.default_rng(0)
    states = optuna.trial.TrialState
    for number in range(trials):
        rate, units = 10 ** rng.uniform(-4, -1), rng.choice(PARAMETERS[1]["choices"])
        layers = int(rng.integers(1, 5))
        best = 0.02 + 0.05 * abs(math.log10(rate) + 2) + 0.4 / int(units) + 0.01 * layers
        state = (
            states.FAIL if number % 7 == 3 else states.PRUNED if best > 0.11 else states.COMPLETE
        )
        state = states.RUNNING if number == trials - 1 else state
        length = {states.FAIL: 0, states.PRUNED: 5, states.RUNNING: 3}.get(state, epochs)
        curve = {
            epoch: best + 0.7 * math.exp(-epoch / 2) + 0.01 * rng.random()
            for epoch in range(1, length + 1)
        }
        failed = state == states.FAIL
        study.add_trial(
            optuna.create_trial(
                state=state,
                value=min(curve.values()) if state == states.COMPLETE else None,
                params={"lr": rate, "units": str(units), "layers": layers},
                distributions={
                    "lr": optuna.distributions.FloatDistribution(1e-4, 0.1, log=True),
                    "units": optuna.distributions.CategoricalDistribution(PARAMETERS[1]["choices"]),
                    "layers": optuna.distributions.IntDistribution(1, 4),
                },
                user_attrs={
                    "command": f"towerpack train digits.py lr={rate:.6g} units={units}",
                    **({"error": error or "ValueError: expected fewer layers"} if failed else {}),
                },
                intermediate_values=curve,
            )
        )
    return directory

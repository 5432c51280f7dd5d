"""How an Estimator runs: the options of its runs, and where they start from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towerpack.checkpoint import load_checkpoint_vars
from towerpack.core.similar import nearest_first
from towerpack.train import SimpleTrainer, SingleCostTrainer
from towerpack.train.config import check_trainer

DEFAULT_SAVE_SECONDS = 600  # as in TensorFlow


@dataclass(frozen=True)
class RunConfig:
    """The options of an Estimator's runs.

    Args:
        model_dir: the directory of checkpoints and logs.
        tf_random_seed: seeds TensorFlow, Keras, numpy and Python in each call of `train`. For runs
            that are equal bit for bit, call `towerpack.set_random_seed` instead.
        save_checkpoints_steps: the interval of checkpoints in steps; or
        save_checkpoints_secs: in seconds, 600 by default.
        keep_checkpoint_max: how many of the latest checkpoints are kept.
        log_step_count_steps: the interval in steps at which scalars and the speed are logged.
        train_distribute: a function without arguments that makes the trainer, such as
            `lambda: SyncMultiGPUTrainer(2)`, or a trainer for a single call of `train`.
    """

    model_dir: str | Path | None = None
    tf_random_seed: int | None = None
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int = 5
    log_step_count_steps: int = 100
    train_distribute: Callable[[], SingleCostTrainer] | SingleCostTrainer = SimpleTrainer

    def __post_init__(self) -> None:
        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            raise ValueError(
                "expected save_checkpoints_steps or save_checkpoints_secs, received both"
            )
        if self.log_step_count_steps < 1:
            raise ValueError(
                f"expected a positive log_step_count_steps, received {self.log_step_count_steps}"
            )

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with other values of these options."""
        return dataclasses.replace(self, **changes)

    @property
    def save_interval(self) -> str:
        """The interval of checkpoints, as a `ModelSaver` takes it."""
        if self.save_checkpoints_steps is not None:
            return f"{self.save_checkpoints_steps} steps"
        return f"{self.save_checkpoints_secs or DEFAULT_SAVE_SECONDS} s"

    def make_trainer(self) -> SingleCostTrainer:
        made = self.train_distribute
        trainer = made if isinstance(made, SingleCostTrainer) else made()
        check_trainer(trainer)
        if not isinstance(trainer, SingleCostTrainer) or trainer.uses_servers:
            raise TypeError(
                "expected a trainer of a single cost without parameter servers, such as "
                "SimpleTrainer, SyncMultiGPUTrainer or DistributedTrainerReplicated, received "
                f"{trainer!r}"
            )
        return trainer


@dataclass(frozen=True)
class WarmStartSettings:
    """Which weights a new model takes from a checkpoint.

    Args:
        ckpt_to_initialize_from: a checkpoint or its directory, or anything that
            `load_checkpoint_vars` reads.
        vars_to_warm_start: a pattern, or several, which is found in the names of the trainable
            variables to set; all by default.
        var_name_to_prev_var_name: names in the checkpoint, by names in the new model, of those that
            differ.
    """

    ckpt_to_initialize_from: str | Path
    vars_to_warm_start: str | Sequence[str] = ".*"
    var_name_to_prev_var_name: Mapping[str, str] = field(default_factory=dict)

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        """The values from the checkpoint for the trainable variables of these names."""
        given = self.vars_to_warm_start
        patterns = [given] if isinstance(given, str) else list(given)
        chosen = [name for name in names if any(re.search(p, name) for p in patterns)]
        if not chosen:
            raise ValueError(
                f"expected vars_to_warm_start to match variables among {nearest_first('', names)}, "
                f"received {given!r}"
            )
        saved = load_checkpoint_vars(str(self.ckpt_to_initialize_from))
        previous = {name: self.var_name_to_prev_var_name.get(name, name) for name in chosen}
        for name, before in previous.items():
            if before not in saved:
                raise KeyError(
                    f"{self.ckpt_to_initialize_from} has no variable {before!r} for {name!r}; the "
                    f"nearest are {nearest_first(before, saved)}. Give var_name_to_prev_var_name, "
                    "or leave the variable out of vars_to_warm_start"
                )
        return {name: saved[before] for name, before in previous.items()}


def as_warm_start(given: Any) -> WarmStartSettings | None:
    """The settings; a path stands for all weights of that checkpoint."""
    if given is None or isinstance(given, WarmStartSettings):
        return given
    return WarmStartSettings(given)

"""Trains and evaluates on the ranks of a launcher: python -m tests.estimator.rank_script RANKS."""

import json
import sys
from pathlib import Path

import towerpack.estimator as learn
from tests.estimator.linear import data, few_logs, with_optimizer
from towerpack import DistributedTrainerReplicated, SimpleTrainer
from towerpack._tensorflow import v1
from towerpack.core.cluster import is_chief


def main(ranks):
    trainer = DistributedTrainerReplicated if ranks > 1 else SimpleTrainer
    config = few_logs(train_distribute=trainer, save_checkpoints_steps=4, log_step_count_steps=5)
    model_fn = with_optimizer(lambda: v1.train.MomentumOptimizer(0.01, 0.9))
    estimator = learn.Estimator(model_fn, "run", config)
    result = learn.train_and_evaluate(
        estimator,
        learn.TrainSpec(data(4 // ranks, num_epochs=None, shuffle=False), max_steps=12),
        learn.EvalSpec(data(3), name="all", start_delay_secs=0, throttle_secs=0),
    )
    if is_chief():
        weights = {name: estimator.get_variable_value(name).tolist() for name in ("W", "b")}
        Path("result.json").write_text(json.dumps({**result, **weights}))
    elif result is not None:
        raise AssertionError(f"expected None, received {result}")


if __name__ == "__main__":
    main(int(sys.argv[1]))

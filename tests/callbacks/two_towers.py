"""Run by test_two_towers.py in a process of its own: logical devices are made before TensorFlow."""

import sys

import numpy as np

import towerpack.callbacks as room
from tests.callbacks.examples import EXAMPLES
from tests.callbacks.training import Model, run
from tests.tiny_model import tiny_arrays
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.train import (
    SimpleTrainer,
    SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated,
)

EPOCHS, STEPS = 2, 6
AVERAGE = "fc/W/ExponentialMovingAverage"


def callbacks():
    """Those that have to do with towers: they add to the step, set variables, or fetch."""
    return [
        room.EMA(0.9),
        room.GradientNorm(),
        room.ScheduledHyperParamSetter("learning_rate", [(0, 0.5), (1, 0.25)]),
        room.InferenceRunner(flow(7), room.ClassificationError()),
        room.DataParallelInferenceRunner(flow(7), room.ScalarStats("cost", "two"), 2),
        room.DataParallelInferenceRunner(flow(7), room.KerasMetric("accuracy"), 2),
        room.TrainingMetric("accuracy"),
        room.TrainingMetric("MeanSquaredError", prediction="score", label="is_positive"),
        room.MergeAllSummaries(),
        room.CheckNumerics(),
    ]


def flow(batch):
    return BatchData(DataFromArrays(*tiny_arrays(), shuffle=False), batch, remainder=True)


def comparable(result):
    wanted = ("gradient_norm", "learning_rate", "validation", "two", "training")
    return {
        (step, name): value
        for step, name, value in result.monitor.scalars
        if name.startswith(wanted)
    }


def main(directory):
    two = [
        lambda: SyncMultiGPUTrainerReplicated(2),
        lambda: SyncMultiGPUTrainerParameterServer(2),
    ]
    first = two[0]()  # makes the logical devices
    logger.set_logger_dir(directory)
    # Two towers on batches of 5 each do what one does on batches of 10.
    one = run(callbacks(), EPOCHS, flow=flow(10), trainer=SimpleTrainer(jit=False))
    for trainer in (first, two[1]()):
        both = run(callbacks(), EPOCHS, flow=flow(5), trainer=trainer, steps=STEPS)
        expected, found = comparable(one), comparable(both)
        assert expected.keys() == found.keys(), (expected, found)
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-4, err_msg=str(key))
        for name in ("fc/W", AVERAGE):
            np.testing.assert_allclose(
                both.trainer.store[name], one.trainer.store[name], rtol=1e-4, atol=1e-6
            )
    for name, example in EXAMPLES.items():
        if "Profiler" not in name:
            company = [room.MovingAverageSummary(), example.make()]
            result = run(company, 1, model=Model(), flow=flow(5), trainer=two[0](), steps=STEPS)
            assert result.trainer.global_step == STEPS, name


if __name__ == "__main__":
    main(sys.argv[1])

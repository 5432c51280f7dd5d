"""One example of every callback, for the laws that hold for all of them."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import optuna

import towerpack.callbacks as room
from tests.callbacks.training import STEPS
from tests.tiny_model import tiny_arrays, tiny_flow
from towerpack.callbacks import Callback, base, inference, saver, trigger
from towerpack.core.concurrency import StoppableThread

ALL, LAST, NONE = "every step", "the last step of each epoch", "none"


@dataclass
class Example:
    make: Callable[[], Callback]
    watches: Any = NONE  # which steps it runs by themselves: one of the above, or a list of them
    repeatable: bool = True  # whether the same scalars come from every run
    forgets: bool = True  # whether a second run begins as if it were the first


def put(name: str = "error") -> Callback:
    """Puts a scalar that improves once and then no more."""
    return room.CallbackFactory(
        trigger=lambda self: self.trainer.monitors.put_scalar(name, 1 / min(self.epoch_num, 2))
    )


class Waiting(StoppableThread):
    def run(self) -> None:
        self._stop_event.wait()


def validation() -> Any:
    return tiny_flow(shuffle=False)


EXAMPLES: dict[str, Example] = {
    "CallbackFactory": Example(put),
    "CheckNumerics": Example(room.CheckNumerics),
    "CheckNumerics(run_step)": Example(lambda: room.CheckNumerics(run_step=True), ALL),
    "ClassFrequencies": Example(lambda: room.ClassFrequencies(training=[0] * 99 + [1])),
    "DataParallelInferenceRunner": Example(
        lambda: room.DataParallelInferenceRunner(validation(), room.ScalarStats("cost"), 2)
    ),
    "DumpTensorAsImage": Example(lambda: room.DumpTensorAsImage("fc/W", scale=100)),
    "DumpTensorAsImage(tensor)": Example(lambda: room.DumpTensorAsImage("picture"), LAST),
    "DumpTensors": Example(lambda: room.DumpTensors(["cost", "x"]), ALL),
    "EMA": Example(lambda: room.EMA(0.9)),
    "EarlyStopping": Example(lambda: room.EarlyStopping("cost", patience=50)),
    "EnableCallbackIf": Example(
        lambda: room.EnableCallbackIf(put(), lambda self: self.epoch_num == 2)
    ),
    "EnableCallbackIf(steps)": Example(
        lambda: room.EnableCallbackIf(
            room.SimpleMovingAverage("cost", 3), lambda self: self.epoch_num == 2
        ),
        ALL,
    ),
    "EstimatedTimeLeft": Example(room.EstimatedTimeLeft),
    "GradientNorm": Example(room.GradientNorm),
    "GraphSummary": Example(room.GraphSummary),
    "GraphProfiler": Example(room.GraphProfiler, ALL),
    "HostMemoryTracker": Example(room.HostMemoryTracker, repeatable=False),
    "HumanHyperParamSetter": Example(lambda: room.HumanHyperParamSetter("learning_rate")),
    "HyperParamSetterWithFunc": Example(
        lambda: room.HyperParamSetterWithFunc("learning_rate", lambda epochs, old: old * 0.9)
    ),
    "InferenceRunner": Example(
        lambda: room.InferenceRunner(
            validation(),
            [
                room.ScalarStats("cost"),
                room.ClassificationError(),
                room.BinaryClassificationStats("decision", "is_positive"),
                room.ClassReport(picture=False),
                room.TopK(k=[1, 2]),
                room.RocCurve("score", "is_positive", picture=False),
                room.KerasMetric("accuracy"),
                room.PrecisionRecallCurve("score", "is_positive", picture=False),
            ],
        )
    ),
    "InjectShell": Example(lambda: room.InjectShell("nobody-makes-this")),
    "LearningRateRangeTest": Example(lambda: room.LearningRateRangeTest(steps=500), ALL),
    "MaxSaver": Example(lambda: room.MaxSaver("cost"), forgets=False),
    "MergeAllSummaries": Example(room.MergeAllSummaries, LAST),
    "MergeAllSummaries(period)": Example(lambda: room.MergeAllSummaries(period=4), [4, 6, 10, 12]),
    "MinSaver": Example(lambda: room.MinSaver("cost"), forgets=False),
    "ModelSaver": Example(room.ModelSaver, forgets=False),
    "ModelSummary": Example(room.ModelSummary),
    "MovingAverageSummary": Example(room.MovingAverageSummary, repeatable=False),
    "PeriodicCallback": Example(
        lambda: room.PeriodicCallback(room.ProcessTensors("cost", lambda cost: None), 5),
        [5, 10, 12],
    ),
    "PeriodicCallback(epochs)": Example(
        lambda: room.PeriodicCallback(put(), every_k_epochs=2),
    ),
    "PeriodicTrigger": Example(lambda: room.PeriodicTrigger(put(), every_k_steps=5), [5, 10]),
    "PeriodicTrigger(tensor)": Example(
        lambda: room.PeriodicTrigger(room.DumpTensorAsImage("picture"), "5 steps"), [5, 6, 10, 12]
    ),
    "PeriodicTrigger(time)": Example(lambda: room.PeriodicTrigger(put(), every="10 h")),
    "PredictionImages": Example(
        lambda: room.PredictionImages(
            [tiny_arrays()[0]], "prob", ["x"], lambda inputs, outputs: outputs[0] * 255
        )
    ),
    "ProcessTensors": Example(lambda: room.ProcessTensors("cost", lambda cost: None), ALL),
    "Profiler": Example(lambda: room.Profiler(2, 5), [2, 5]),
    "ProgressBar": Example(room.ProgressBar),
    "ProgressBar(names)": Example(lambda: room.ProgressBar(["cost", "not/put/yet"])),
    "ProgressBar(tensor)": Example(lambda: room.ProgressBar("Mean"), ALL),
    "ProxyCallback": Example(lambda: room.ProxyCallback(put())),
    "ProxyCallback(steps)": Example(
        lambda: room.ProxyCallback(room.SimpleMovingAverage("cost", 4)), ALL
    ),
    "PruneTrial": Example(lambda: room.PruneTrial(optuna.create_study().ask(), "cost")),
    "RunOp": Example(lambda: room.RunOp(lambda: None)),
    "RunOp(run_step)": Example(lambda: room.RunOp(lambda trainer: None, run_step=True), ALL),
    "ScheduledHyperParamSetter": Example(
        lambda: room.ScheduledHyperParamSetter("learning_rate", [(0, 0.1), (1, 0.2), (2, 0)])
    ),
    "ScheduledHyperParamSetter(steps)": Example(
        lambda: room.ScheduledHyperParamSetter(
            "learning_rate", [(2, 0.1), (7, 0.2), (90, 0)], step_based=True
        ),
        [2, 7],
    ),
    "ScheduledHyperParamSetter(linear steps)": Example(
        lambda: room.ScheduledHyperParamSetter(
            "learning_rate", [(3, 0.1), (8, 0.2)], interp="linear", step_based=True
        ),
        [3, 4, 5, 6, 7, 8],
    ),
    "SendStat": Example(lambda: room.SendStat("true {cost}", "cost")),
    "SimpleMovingAverage": Example(lambda: room.SimpleMovingAverage("cost", 8), ALL),
    "StartProcOrThread": Example(lambda: room.StartProcOrThread(Waiting())),
    "StatMonitorParamSetter": Example(
        lambda: room.StatMonitorParamSetter(
            "learning_rate", "cost", lambda rate: rate / 2, threshold=100, last_k=2
        )
    ),
    "StopAt": Example(lambda: room.StopAt(2 * STEPS), [2 * STEPS]),
    "StopAt(time)": Example(lambda: room.StopAt("10 h")),
    "TensorPrinter": Example(lambda: room.TensorPrinter("cost"), ALL),
    "TerminateOnNaN": Example(lambda: room.TerminateOnNaN("prob"), ALL),
    "TerminateOnNaN(epoch)": Example(lambda: room.TerminateOnNaN("prob", run_step=False), LAST),
    "TrainingMetric": Example(lambda: room.TrainingMetric("accuracy")),
    "ThroughputTracker": Example(lambda: room.ThroughputTracker(10), repeatable=False),
}

ABSTRACT = {
    base.Callback,
    room.Callbacks,
    room.HyperParamSetter,
    inference.InferenceRunnerBase,
    saver.Saver,
    trigger.MaskedCallback,
}
NEED_GPU = {room.GPUUtilizationTracker, room.PeakMemoryTracker}


def kinds() -> Sequence[type[Callback]]:
    """Every callback class of the room, wherever it is defined."""
    found = set()
    for info in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        for _, value in inspect.getmembers(import_module(info.name), inspect.isclass):
            if issubclass(value, Callback) and value.__module__.startswith(room.__name__):
                found.add(value)
    return sorted(found - ABSTRACT, key=lambda kind: kind.__name__)

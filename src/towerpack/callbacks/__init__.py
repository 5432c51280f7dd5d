"""Everything that happens during training besides the iterations themselves.

`Callback` is the base class, and its docstring has the order of events. Callbacks use only those
attributes of a trainer that `TrainerView` lists, so this room comes before `train`.
"""

from towerpack.callbacks.base import Callback, CallbackFactory, ProxyCallback, StopTraining
from towerpack.callbacks.class_frequencies import ClassFrequencies
from towerpack.callbacks.ema import EMA
from towerpack.callbacks.group import Callbacks
from towerpack.callbacks.hyperparam import (
    GraphVarParam,
    HumanHyperParamSetter,
    HyperParam,
    HyperParamSetter,
    HyperParamSetterWithFunc,
    ObjAttrParam,
    StatMonitorParamSetter,
)
from towerpack.callbacks.inference import (
    DataParallelInferenceRunner,
    Inferencer,
    InferenceRunner,
    InferenceRunnerBase,
)
from towerpack.callbacks.inferencers import (
    BinaryClassificationStats,
    ClassificationError,
    ClassReport,
    ConfusionMatrix,
    PrecisionRecallCurve,
    RocCurve,
    ScalarStats,
    TopK,
)
from towerpack.callbacks.keras_metrics import KerasMetric, TrainingMetric
from towerpack.callbacks.profiler import GraphProfiler, Profiler
from towerpack.callbacks.progress_bar import ProgressBar
from towerpack.callbacks.pruning import PruneTrial
from towerpack.callbacks.range_test import LearningRateRangeTest
from towerpack.callbacks.saver import MaxSaver, MinSaver, ModelSaver
from towerpack.callbacks.schedules import ScheduledHyperParamSetter, cosine, one_cycle, warmup
from towerpack.callbacks.stopping import CheckNumerics, EarlyStopping, StopAt, TerminateOnNaN
from towerpack.callbacks.summary import (
    GradientNorm,
    GraphSummary,
    MergeAllSummaries,
    ModelSummary,
    MovingAverageSummary,
    SimpleMovingAverage,
)
from towerpack.callbacks.tensors import (
    DumpTensorAsImage,
    DumpTensors,
    PredictionImages,
    ProcessTensors,
    TensorPrinter,
)
from towerpack.callbacks.trackers import (
    EstimatedTimeLeft,
    GPUUtilizationTracker,
    HostMemoryTracker,
    PeakMemoryTracker,
    ThroughputTracker,
)
from towerpack.callbacks.trigger import EnableCallbackIf, PeriodicCallback, PeriodicTrigger
from towerpack.callbacks.user_code import (
    InjectShell,
    RunOp,
    SendStat,
    StartProcOrThread,
)

__all__ = [
    "EMA",
    "BinaryClassificationStats",
    "Callback",
    "CallbackFactory",
    "Callbacks",
    "CheckNumerics",
    "ClassFrequencies",
    "ClassReport",
    "ClassificationError",
    "ConfusionMatrix",
    "DataParallelInferenceRunner",
    "DumpTensorAsImage",
    "DumpTensors",
    "EarlyStopping",
    "EnableCallbackIf",
    "EstimatedTimeLeft",
    "GPUUtilizationTracker",
    "GradientNorm",
    "GraphProfiler",
    "GraphSummary",
    "GraphVarParam",
    "HostMemoryTracker",
    "HumanHyperParamSetter",
    "HyperParam",
    "HyperParamSetter",
    "HyperParamSetterWithFunc",
    "InferenceRunner",
    "InferenceRunnerBase",
    "Inferencer",
    "InjectShell",
    "KerasMetric",
    "LearningRateRangeTest",
    "MaxSaver",
    "MergeAllSummaries",
    "MinSaver",
    "ModelSaver",
    "ModelSummary",
    "MovingAverageSummary",
    "ObjAttrParam",
    "PeakMemoryTracker",
    "PeriodicCallback",
    "PeriodicTrigger",
    "PrecisionRecallCurve",
    "PredictionImages",
    "ProcessTensors",
    "Profiler",
    "ProgressBar",
    "ProxyCallback",
    "PruneTrial",
    "RocCurve",
    "RunOp",
    "ScalarStats",
    "ScheduledHyperParamSetter",
    "SendStat",
    "SimpleMovingAverage",
    "StartProcOrThread",
    "StatMonitorParamSetter",
    "StopAt",
    "StopTraining",
    "TensorPrinter",
    "TerminateOnNaN",
    "ThroughputTracker",
    "TopK",
    "TrainingMetric",
    "cosine",
    "one_cycle",
    "warmup",
]

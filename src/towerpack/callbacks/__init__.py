"""Everything that happens during training besides the iterations themselves.

`Callback` is the base class, with the order of events in its docstring. Callbacks see the trainer
only through the attributes that it promises (`TrainerView`), so this room comes before `train`.
"""

from towerpack.callbacks.base import Callback, StopTraining
from towerpack.callbacks.best_saver import MaxSaver, MinSaver
from towerpack.callbacks.check_numerics import CheckNumerics, TerminateOnNaN
from towerpack.callbacks.classification import ClassReport, ConfusionMatrix, RocCurve, TopK
from towerpack.callbacks.dump_image import DumpParamAsImage, DumpTensorAsImage
from towerpack.callbacks.early_stopping import EarlyStopping, StopAt
from towerpack.callbacks.ema import EMA
from towerpack.callbacks.gpu_trackers import (
    GPUMemoryTracker,
    GPUUtilizationTracker,
    PeakMemoryTracker,
)
from towerpack.callbacks.gradient_norm import GradientNorm
from towerpack.callbacks.graph_summary import GraphSummary
from towerpack.callbacks.group import Callbacks
from towerpack.callbacks.hyperparam import GraphVarParam, HyperParam, ObjAttrParam
from towerpack.callbacks.hyperparam_setter import (
    HumanHyperParamSetter,
    HyperParamSetter,
    HyperParamSetterWithFunc,
    StatMonitorParamSetter,
)
from towerpack.callbacks.inference import (
    BinaryClassificationStats,
    ClassificationError,
    Inferencer,
    ScalarStats,
)
from towerpack.callbacks.inference_runner import (
    DataParallelInferenceRunner,
    InferenceRunner,
    InferenceRunnerBase,
)
from towerpack.callbacks.inject_shell import InjectShell
from towerpack.callbacks.model_summary import ModelSummary
from towerpack.callbacks.prediction_images import PredictionImages
from towerpack.callbacks.profiler import GraphProfiler, Profiler
from towerpack.callbacks.progress_bar import ProgressBar
from towerpack.callbacks.proxy import CallbackFactory, ProxyCallback
from towerpack.callbacks.range_test import LearningRateRangeTest
from towerpack.callbacks.run_op import RunOp, RunUpdateOps
from towerpack.callbacks.saver import ModelSaver
from towerpack.callbacks.scheduled_setter import ScheduledHyperParamSetter
from towerpack.callbacks.schedules import cosine, one_cycle, warmup
from towerpack.callbacks.send_stat import SendStat
from towerpack.callbacks.start_proc import StartProcOrThread
from towerpack.callbacks.summary import (
    MergeAllSummaries,
    MovingAverageSummary,
    SimpleMovingAverage,
)
from towerpack.callbacks.tensors import DumpTensor, DumpTensors, ProcessTensors, TensorPrinter
from towerpack.callbacks.time_left import EstimatedTimeLeft
from towerpack.callbacks.trackers import HostMemoryTracker, ThroughputTracker
from towerpack.callbacks.trigger import EnableCallbackIf, PeriodicCallback, PeriodicTrigger

__all__ = [
    "EMA",
    "BinaryClassificationStats",
    "Callback",
    "CallbackFactory",
    "Callbacks",
    "CheckNumerics",
    "ClassReport",
    "ClassificationError",
    "ConfusionMatrix",
    "DataParallelInferenceRunner",
    "DumpParamAsImage",
    "DumpTensor",
    "DumpTensorAsImage",
    "DumpTensors",
    "EarlyStopping",
    "EnableCallbackIf",
    "EstimatedTimeLeft",
    "GPUMemoryTracker",
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
    "PredictionImages",
    "ProcessTensors",
    "Profiler",
    "ProgressBar",
    "ProxyCallback",
    "RocCurve",
    "RunOp",
    "RunUpdateOps",
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
    "cosine",
    "one_cycle",
    "warmup",
]

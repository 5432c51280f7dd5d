"""Everything that happens during training besides the iterations themselves.

`Callback` is the base class, with the order of events in its docstring. Callbacks see the trainer
only through the attributes that it promises (`TrainerView`), so this room comes before `train`.
"""

from towerpack.callbacks.base import Callback, StopTraining
from towerpack.callbacks.group import Callbacks
from towerpack.callbacks.inference import ClassificationError, Inferencer, ScalarStats
from towerpack.callbacks.inference_runner import InferenceRunner
from towerpack.callbacks.progress_bar import ProgressBar
from towerpack.callbacks.saver import ModelSaver
from towerpack.callbacks.summary import MergeAllSummaries, MovingAverageSummary

__all__ = [
    "Callback",
    "Callbacks",
    "ClassificationError",
    "InferenceRunner",
    "Inferencer",
    "MergeAllSummaries",
    "ModelSaver",
    "MovingAverageSummary",
    "ProgressBar",
    "ScalarStats",
    "StopTraining",
]

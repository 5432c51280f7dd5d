"""Predictors made from the same tower function that was trained; never imports `train`."""

from towerpack.predict.async_predictor import MultiThreadAsyncPredictor
from towerpack.predict.base import PredictorBase
from towerpack.predict.config import PredictConfig
from towerpack.predict.dataset import (
    DatasetPredictorBase,
    MultiProcessDatasetPredictor,
    SimpleDatasetPredictor,
)
from towerpack.predict.feedfree import FeedfreePredictor
from towerpack.predict.multi_tower import DataParallelOfflinePredictor, MultiTowerOfflinePredictor
from towerpack.predict.offline import OfflinePredictor
from towerpack.predict.online import OnlinePredictor
from towerpack.predict.process import PredictError

__all__ = [
    "DataParallelOfflinePredictor",
    "DatasetPredictorBase",
    "FeedfreePredictor",
    "MultiProcessDatasetPredictor",
    "MultiThreadAsyncPredictor",
    "MultiTowerOfflinePredictor",
    "OfflinePredictor",
    "OnlinePredictor",
    "PredictConfig",
    "PredictError",
    "PredictorBase",
    "SimpleDatasetPredictor",
]

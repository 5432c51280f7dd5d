"""Predictors made from the tower function that was trained; never imports `train`."""

from towerpack.predict.async_predictor import MultiThreadAsyncPredictor
from towerpack.predict.config import PredictConfig
from towerpack.predict.dataset import (
    DatasetPredictorBase,
    MultiProcessDatasetPredictor,
    SimpleDatasetPredictor,
)
from towerpack.predict.predictor import (
    DataParallelOfflinePredictor,
    FeedfreePredictor,
    MultiTowerOfflinePredictor,
    OfflinePredictor,
    OnlinePredictor,
    PredictorBase,
)
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

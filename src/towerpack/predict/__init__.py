"""Predictors made from the same tower function that was trained; never imports `train`."""

from towerpack.predict.config import PredictConfig
from towerpack.predict.offline import OfflinePredictor

__all__ = ["OfflinePredictor", "PredictConfig"]

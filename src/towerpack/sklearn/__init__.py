"""Classifiers and regressors with the interface of scikit-learn."""

from towerpack.sklearn.classifier import TowerClassifier
from towerpack.sklearn.regressor import TowerRegressor

__all__ = ["TowerClassifier", "TowerRegressor"]

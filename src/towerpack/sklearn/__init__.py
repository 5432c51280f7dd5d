"""Classifiers and regressors with the interface of scikit-learn."""

from towerpack.core.optional import require

require("sklearn", extra="sklearn")  # before the modules that import it

from towerpack.sklearn.classifier import TowerClassifier  # noqa: E402
from towerpack.sklearn.regressor import TowerRegressor  # noqa: E402

__all__ = ["TowerClassifier", "TowerRegressor"]

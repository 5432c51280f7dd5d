"""scikit-learn's own checks of estimators: no failure is expected, as with its own MLP."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from towerpack.sklearn import TowerClassifier, TowerRegressor

pytestmark = pytest.mark.filterwarnings("ignore")  # the checks fit on purpose what warns

# scikit-learn checks its own MLP with max_iter=100 as well.
ESTIMATORS = [TowerClassifier(max_iter=100), TowerRegressor(max_iter=100)]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    check(estimator)

import pickle

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression

import towerpack
from towerpack.sklearn import TowerRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_diabetes(return_X_y=True)
Y = np.stack([Y, -Y], axis=1) / 100


def linear(x, outputs):
    return towerpack.FullyConnected("linear", x, outputs)


def test_a_linear_tower_finds_the_solution_of_least_squares():
    rows = X * 20
    model = TowerRegressor(
        tower_func=linear, alpha=0, learning_rate_init=0.05, batch_size=len(X), max_iter=400,
        n_iter_no_change=np.inf, random_state=0,
    )  # fmt: skip
    model.fit(rows, Y)
    exact = LinearRegression().fit(rows, Y).predict(rows)
    np.testing.assert_allclose(model.predict(rows), exact, atol=0.1)


def test_several_outputs_from_a_file_and_from_sparse_rows(tmp_path):
    model = TowerRegressor((20,), learning_rate_init=0.02, max_iter=30, random_state=0).fit(X, Y)
    assert model.predict(X).shape == Y.shape
    assert model.score(X, Y) > 0.3
    model.save(tmp_path / "model")
    for copied in (TowerRegressor.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(copied.predict(X), model.predict(X))
    sparse = scipy.sparse.csr_array(X)
    np.testing.assert_allclose(model.predict(sparse), model.predict(X), rtol=1e-12)
    with pytest.raises(ValueError, match="a TowerClassifier in .*, received a TowerRegressor"):
        towerpack.TowerClassifier.load(tmp_path / "model")


def test_partial_fit_keeps_the_number_of_outputs():
    model = TowerRegressor((4,)).partial_fit(X, Y)
    with pytest.raises(ValueError, match="y with 2 columns, as in the first call; received 1"):
        model.partial_fit(X, Y[:, 0])
    with pytest.raises(ValueError, match="early_stopping"):
        model.set_params(early_stopping=True).partial_fit(X, Y)

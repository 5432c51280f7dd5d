"""Fits are those of scikit-learn's MLP: the same weights for the same random_state."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from towerpack.sklearn import TowerClassifier, TowerRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def digits():
    X, y = load_digits(return_X_y=True)
    return X[:500] / 16, y[:500]


def assert_equal_fits(ours, theirs, X, rtol=1e-5, atol=1e-6):
    assert ours.n_iter_ == theirs.n_iter_
    assert ours.t_ == theirs.t_
    np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=rtol)
    for mine, other in zip(
        [*ours.coefs_, *ours.intercepts_], [*theirs.coefs_, *theirs.intercepts_], strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=atol)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "options",
    [
        {"max_iter": 8},
        {"max_iter": 60, "early_stopping": True, "n_iter_no_change": 2, "tol": 1e-2},
        {"max_iter": 40, "solver": "sgd", "learning_rate_init": 0.1, "tol": 0.2,
         "n_iter_no_change": 2, "activation": "tanh"},
        {"max_iter": 5, "hidden_layer_sizes": (12, 7), "activation": "logistic", "alpha": 0.1,
         "batch_size": 64, "shuffle": False},
    ],
    ids=["adam", "early stopping", "sgd", "two layers in order"],
)  # fmt: skip
def test_classes(options):
    X, y = digits()
    ours = TowerClassifier(random_state=3, **options).fit(X, y)
    theirs = MLPClassifier(random_state=3, **options).fit(X, y)
    assert_equal_fits(ours, theirs, X)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert ours.validation_scores_ == theirs.validation_scores_
    assert ours.best_validation_score_ == theirs.best_validation_score_


def test_two_classes_with_weights_by_row():
    X, y = load_iris(return_X_y=True)
    X, y = X[y < 2], np.array(["no", "yes"])[y[y < 2]]
    weights = np.random.default_rng(0).uniform(0, 3, len(y))
    options = {"max_iter": 20, "random_state": 1, "batch_size": 30}
    ours = TowerClassifier(**options).fit(X, y, weights)
    theirs = MLPClassifier(**options).fit(X, y, weights)
    assert_equal_labels = np.array_equal(ours.predict(X), theirs.predict(X))
    assert assert_equal_labels
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=1e-5)


def test_several_labels():
    X, y = make_multilabel_classification(120, 6, n_classes=4, random_state=0)
    options = {"max_iter": 30, "random_state": 0, "early_stopping": True}
    ours, theirs = (kind(**options).fit(X, y) for kind in (TowerClassifier, MLPClassifier))
    assert_equal_fits(ours, theirs, X)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("columns", [1, 3])
def test_values(columns):
    X, y = load_diabetes(return_X_y=True)
    y = y / 100 if columns == 1 else np.stack([y, y**2 / 100, -y], axis=1) / 100
    options = {"max_iter": 30, "random_state": 1, "hidden_layer_sizes": (20,), "batch_size": 100}
    ours, theirs = (kind(**options).fit(X, y) for kind in (TowerRegressor, MLPRegressor))
    assert_equal_fits(ours, theirs, X)


def test_float32():
    X, y = digits()
    X = X.astype(np.float32)
    ours, theirs = (
        kind(max_iter=5, random_state=0).fit(X, y) for kind in (TowerClassifier, MLPClassifier)
    )
    assert ours.coefs_[0].dtype == ours.predict_proba(X).dtype == np.float32
    assert_equal_fits(ours, theirs, X, rtol=1e-3, atol=1e-4)


def test_a_long_fit_compiled_by_xla():
    X, y = digits()
    options = {"max_iter": 150, "random_state": 0, "batch_size": 48, "hidden_layer_sizes": (8,)}
    ours, theirs = (kind(**options).fit(X, y) for kind in (TowerClassifier, MLPClassifier))
    assert_equal_fits(ours, theirs, X, rtol=1e-3, atol=1e-3)


def test_partial_fit_and_warm_start_continue():
    X, y = digits()
    ours, theirs = (
        kind(max_iter=3, random_state=0, warm_start=True).fit(X, y)
        for kind in (TowerClassifier, MLPClassifier)
    )
    for model in (ours, theirs):
        model.partial_fit(X, y)
        model.partial_fit(X[:100], y[:100])
        model.fit(X, y)
    assert_equal_fits(ours, theirs, X)


def test_it_warns_like_its_model_where_a_fit_has_not_converged():
    X, y = digits()
    with pytest.warns(ConvergenceWarning, match="max_iter=1 epochs"):
        TowerClassifier(max_iter=1).fit(X, y)

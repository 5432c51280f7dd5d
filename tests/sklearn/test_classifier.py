"""What scikit-learn's checks leave open: weights, functions, trainers, files, other estimators."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
import sklearn.base
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import towerpack
from towerpack._tensorflow import tf, v1
from towerpack.input_source import InputSource
from towerpack.sklearn import TowerClassifier
from towerpack.sklearn.training import IDLE, Idle
from towerpack.train import NonFiniteCost

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

IRIS = load_iris(return_X_y=True)


def dense(x, outputs):
    """A tower function of towerpack's layers."""
    x = towerpack.FullyConnected("hidden", x, 12, activation=tf.nn.relu)
    return towerpack.FullyConnected("linear", x, outputs)


def keras_layers(x, outputs):
    """A tower function of Keras layers, with state and random numbers."""
    layers = tf.keras.layers
    model = [layers.Dense(16), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2)]
    for layer in [*model, layers.Dense(outputs)]:
        x = layer(x)
    return x


def assert_same_weights(one, other):
    assert list(one.weights_) == list(other.weights_)
    for name, value in one.weights_.items():
        np.testing.assert_array_equal(value, other.weights_[name], name)


def test_a_random_state_gives_the_same_weights_whatever_was_fitted_before():
    X, y = IRIS
    model = TowerClassifier((8,), max_iter=4, random_state=5)
    first = sklearn.base.clone(model).fit(X, y)
    sklearn.base.clone(model).set_params(alpha=1.0, learning_rate_init=0.5).fit(X * 2, y[::-1])
    assert_same_weights(first, model.fit(X, y))


def test_fits_in_threads_do_not_share_a_trainer():
    X, y = IRIS
    seeds = range(4)
    alone = [TowerClassifier((8,), max_iter=4, random_state=s).fit(X, y) for s in seeds]
    start, seed_before = threading.Barrier(len(seeds)), v1.get_seed(1)

    def fit(seed):
        start.wait()
        return TowerClassifier((8,), max_iter=4, random_state=seed).fit(X, y)

    with ThreadPoolExecutor(len(seeds)) as threads:
        together = list(threads.map(fit, seeds))
    assert v1.get_seed(1) == seed_before
    for one, other in zip(alone, together, strict=True):
        assert_same_weights(one, other)


def test_idle_trainers_are_few_and_keep_no_data():
    idle = Idle(2)
    for key in "abc":
        idle.give(key, key.upper())
    assert [idle.take(key) for key in "cca"] == ["C", None, None]
    TowerClassifier((8,), max_iter=1).fit(*IRIS)
    for _, training in IDLE._kept:
        assert type(training.trainer.input_source) is InputSource


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_whole_weights_equal_repeated_rows(solver):
    X, y = IRIS
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    options = {"batch_size": 1000, "shuffle": False, "max_iter": 20, "solver": solver}
    model = TowerClassifier((8,), random_state=0, **options)
    with pytest.warns(UserWarning, match="each batch has all rows"):
        weighted = sklearn.base.clone(model).fit(X, y, sample_weight=weights)
        repeated = model.fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-9)


def test_class_weight_equals_sample_weight():
    X, y = IRIS
    keep = np.r_[0:50, 50:70, 100:110]
    X, y = X[keep], y[keep]
    model = TowerClassifier((8,), max_iter=10, random_state=0)
    by_class = sklearn.base.clone(model).set_params(class_weight={0: 1, 1: 2.5, 2: 5})
    balanced = sklearn.base.clone(model).set_params(class_weight="balanced")
    balanced.fit(X, y)
    weights = np.array([1, 2.5, 5])[y]
    by_class.fit(X, y)
    model.fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(by_class.predict_proba(X), model.predict_proba(X), rtol=1e-9)
    # 'balanced' has the same proportions; only the regularization differs with their sum.
    np.testing.assert_allclose(balanced.predict_proba(X), model.predict_proba(X), rtol=1e-2)
    with pytest.raises(ValueError, match="'balanced' needs all rows"):
        balanced.partial_fit(X, y)


@pytest.mark.parametrize("labels", [np.array([0, 1, 2]), np.array(["a", "b", "c"])])
def test_resampled_rows_are_those_of_integer_weights(labels):
    X, y = IRIS
    keep = np.r_[0:50, 50:75, 100:110]
    X, y = X[keep], labels[y[keep]]
    model = TowerClassifier((8,), max_iter=10, random_state=0, batch_size=150, shuffle=False)
    resampled = sklearn.base.clone(model).set_params(class_weight="resample").fit(X, y)
    repeats = np.repeat([1, 2, 5], [50, 25, 10])
    model.fit(np.repeat(X, repeats, axis=0), np.repeat(y, repeats))
    np.testing.assert_allclose(resampled.predict_proba(X), model.predict_proba(X), rtol=1e-9)
    with pytest.raises(ValueError, match="expected a class for each row"):
        resampled.fit(X, (y[:, None] == labels).astype(int))


def test_partial_fits_are_the_epochs_of_fit():
    X, y = IRIS
    options = {"random_state": 0, "shuffle": False, "batch_size": 40}
    whole = TowerClassifier((8,), max_iter=4, **options).fit(X, y)
    parts = TowerClassifier((8,), **options)
    for _ in range(4):
        parts.partial_fit(X, y, classes=[0, 1, 2])
        parts = pickle.loads(pickle.dumps(parts))
    assert_same_weights(whole, parts)
    assert parts.loss_curve_ == whole.loss_curve_


@pytest.mark.parametrize("large", [False, True])
def test_sparse_rows_equal_dense_ones(large, monkeypatch):
    if large:
        monkeypatch.setattr("towerpack.sklearn.epochs.STACK_BYTES", 1000)
    X, y = IRIS
    X = np.where(X > 2, X, 0)
    model = TowerClassifier((8,), max_iter=5, random_state=0, batch_size=40)
    other = sklearn.base.clone(model).fit(scipy.sparse.csr_array(X), y)
    assert_same_weights(model.fit(X, y), other)
    predicted = other.predict_proba(scipy.sparse.csc_array(X))
    np.testing.assert_allclose(predicted, model.predict_proba(X), rtol=1e-12)


@pytest.mark.parametrize("function", [dense, keras_layers])
def test_tower_functions(function):
    X, y = IRIS
    X = StandardScaler().fit_transform(X)
    model = TowerClassifier(
        tower_func=function, learning_rate_init=0.02, max_iter=30, batch_size=30, random_state=0,
        early_stopping=True,
    )  # fmt: skip
    model.fit(X, y)
    assert model.score(X, y) > 0.9
    sparse = sklearn.base.clone(model).fit(scipy.sparse.csr_array(X), y)
    assert sparse.validation_scores_ == model.validation_scores_
    assert_same_weights(model, sklearn.base.clone(model).fit(X, y))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), atol=1e-6)
    again.set_params(early_stopping=False, warm_start=True, max_iter=1).fit(X, y)
    assert again.loss_ < 0.6 * model.loss_curve_[0]  # it began with what it had learned
    with pytest.raises(AttributeError, match="hidden layers"):
        _ = model.coefs_


def test_a_function_as_solver():
    X, y = IRIS
    options = {"random_state": 0, "max_iter": 10, "batch_size": 40}
    tf.keras.optimizers.Adam().build([tf.keras.Variable(1.0)])  # so Keras numbers the next one
    one = TowerClassifier((8,), solver=tf.keras.optimizers.Adam, **options).fit(X, y)
    assert [name.split("/")[0] for name in one.weights_] == ["layer0"] * 2 + ["layer1"] * 2
    plain = TowerClassifier((8,), **options).fit(X, y)
    np.testing.assert_allclose(one.predict_proba(X), plain.predict_proba(X), rtol=1e-3)


@pytest.mark.parametrize("kind", ["SyncMultiGPUTrainer", "SyncMultiGPUTrainerReplicated"])
def test_towers_in_step_learn_what_one_learns(kind):
    X, y = IRIS
    weights = np.random.default_rng(0).uniform(0, 2, len(y))
    model = TowerClassifier((8,), random_state=0, max_iter=10, batch_size=40)
    one = sklearn.base.clone(model).fit(X, y, weights)
    model.set_params(trainer=lambda: getattr(towerpack, kind)(2)).fit(X, y, weights)
    np.testing.assert_allclose(model.predict_proba(X), one.predict_proba(X), rtol=1e-6)
    np.testing.assert_allclose(model.loss_curve_, one.loss_curve_, rtol=1e-6)


def test_towers_that_do_not_work_in_step_are_refused():
    with pytest.raises(ValueError, match="in step, received a AsyncMultiGPUTrainer"):
        TowerClassifier(trainer=lambda: towerpack.AsyncMultiGPUTrainer(2)).fit(*IRIS)


def test_copies_and_files_hold_what_was_learned(tmp_path):
    X, y = IRIS
    names = np.array(["setosa", "versicolor", "virginica"], object)[y]
    weights = {"setosa": 1, "versicolor": 2, "virginica": 1}
    model = TowerClassifier((8,), max_iter=5, random_state=0, class_weight=weights)
    model.fit(X, names)
    model.save(tmp_path / "model")
    for copied in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        TowerClassifier.load(tmp_path / "model"),
    ):
        assert_same_weights(model, copied)
        assert copied.predict(X).tolist() == model.predict(X).tolist()
        assert copied.get_params() == model.get_params()
        continued = copy.deepcopy(model).partial_fit(X, names)
        assert_same_weights(copied.partial_fit(X, names), continued)
    plain = (dict, list, str, int, float, bool, type(None), np.ndarray, tuple)
    assert all(isinstance(value, plain) for value in model.__getstate__().values())


def test_functions_are_passed_to_load(tmp_path):
    X, y = IRIS
    model = TowerClassifier(tower_func=dense, max_iter=2, random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"functions \['tower_func'\] as arguments of load"):
        TowerClassifier.load(tmp_path / "model")
    loaded = TowerClassifier.load(tmp_path / "model", tower_func=dense)
    np.testing.assert_allclose(loaded.predict_proba(X), model.predict_proba(X), atol=1e-6)


def test_other_estimators_of_scikit_learn_accept_it():
    X, y = load_digits(return_X_y=True)
    X, y = X[:400] / 16, y[:400]
    model = TowerClassifier((20,), max_iter=15, learning_rate_init=0.02, random_state=0)
    pipeline = make_pipeline(StandardScaler(), model)
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.85
    search = GridSearchCV(pipeline, {"towerclassifier__alpha": [1e-4, 100.0]}, cv=2).fit(X, y)
    assert search.best_params_ == {"towerclassifier__alpha": 1e-4}
    calibrated = CalibratedClassifierCV(model, cv=2).fit(X, y)
    assert calibrated.score(X, y) > 0.85


@pytest.mark.slow
def test_a_grid_search_in_two_processes():
    X, y = IRIS
    model = TowerClassifier((8,), max_iter=5, random_state=0)
    grid = {"alpha": [1e-4, 1.0]}
    alone = GridSearchCV(model, grid, cv=2).fit(X, y)
    parallel = GridSearchCV(model, grid, cv=2, n_jobs=2).fit(X, y)
    for name in ("split0_test_score", "split1_test_score"):
        np.testing.assert_array_equal(parallel.cv_results_[name], alone.cv_results_[name])


def test_one_class_is_always_predicted():
    X, _ = IRIS
    model = TowerClassifier((4,), max_iter=2).fit(X, np.full(len(X), "only"))
    assert set(model.predict(X)) == {"only"}
    assert model.predict_proba(X).tolist() == [[1.0]] * len(X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "rel"}, "expected activation to be one of 'relu'"),
        ({"solver": "lbfgs"}, "or a function from the rate to an optimizer; received 'lbfgs'"),
        ({"hidden_layer_sizes": (3, 0)}, "hidden_layer_sizes to be whole numbers above 0"),
        ({"batch_size": 0}, "'auto' or a whole number"),
        ({"max_iter": 1.5}, "max_iter to be a whole number"),
        ({"alpha": -1}, "alpha to be a number of 0 or more"),
        ({"learning_rate_init": 0}, "learning_rate_init to be a number above 0"),
        ({"validation_fraction": 1}, "validation_fraction to be a number from 0 to 1"),
        ({"n_iter_no_change": 0}, "n_iter_no_change"),
        ({"tower_func": 3}, "tower_func to be a function"),
        ({"tower_func": lambda x, outputs: x}, r"logits of shape \[batch, 3\]"),
        ({"early_stopping": True, "validation_fraction": 0.001}, "at least 2 rows"),
    ],
)
def test_errors_name_the_parameter(options, message):
    model = TowerClassifier(**options)
    with pytest.raises(ValueError, match=message):
        model.fit(*IRIS)
    assert not hasattr(model, "weights_")


def test_a_fit_continues_only_with_the_same_layers():
    model = TowerClassifier((8,), max_iter=1, warm_start=True).fit(*IRIS)
    model.set_params(hidden_layer_sizes=(8, 8))
    assert model.predict(IRIS[0]).shape == IRIS[1].shape  # with what it has learned
    with pytest.raises(ValueError, match=r"received \[\(4, 8\), \(8, 8\), \(8, 3\)\]"):
        model.fit(*IRIS)


def test_a_trainer_must_be_one_of_a_single_cost():
    with pytest.raises(TypeError, match="a trainer of one cost, received 'simple'"):
        TowerClassifier(trainer=lambda: "simple").fit(*IRIS)


def test_a_fit_that_diverges_is_an_error():
    X, y = IRIS
    model = TowerClassifier((8,), solver="sgd", learning_rate_init=1e30, max_iter=5)
    with pytest.raises(NonFiniteCost):
        model.fit(X.astype(np.float32), y)


def test_verbose_logs_each_epoch_and_otherwise_the_console_is_quiet(capsys):
    X, y = IRIS
    TowerClassifier((4,), max_iter=2).fit(X, y)
    assert capsys.readouterr().err == ""
    TowerClassifier((4,), max_iter=2, verbose=True, early_stopping=True).fit(X, y)
    printed = capsys.readouterr().err
    assert "epoch 2: the loss is" in printed
    assert "epoch 2: the validation score is" in printed

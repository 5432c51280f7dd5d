"""Feature columns, against those of TensorFlow and the layers of Keras, and numpy."""

import numpy as np
import pytest

from towerpack._tensorflow import tf, v1
from towerpack.estimator import feature_column as fc
from towerpack.tower import TowerContext

theirs = tf.feature_column
FEATURES = {
    "number": np.array([[-3.0], [0.5], [2.0], [np.nan]], np.float32),
    "pair": np.array([[1, 2], [3, 4], [5, 6], [0, 0]], np.float32),
    "town": np.array(["Bonn", "Ulm", "?", ""]),
    "towns": np.array([["Bonn", "Ulm"], ["Ulm", "Ulm"], ["?", "Bonn"], ["", ""]]),
    "code": np.array([7, 3, 99, -1]),
    "digit": np.array([0, 4, 2, 1]),
}
TOWNS = ["Ulm", "Bonn", "Köln"]
BOUNDS = [-1.0, 0.5, 2.0]


def columns(module):
    """(the name of a case, a categorical column of this module)."""
    vocabulary = module.categorical_column_with_vocabulary_list
    hashed = module.categorical_column_with_hash_bucket
    identity = module.categorical_column_with_identity
    options = {} if module is fc else {"dtype": tf.int64}
    return {
        "list": vocabulary("town", TOWNS),
        "list of several": vocabulary("towns", TOWNS, default_value=2),
        "list with more": vocabulary("towns", TOWNS, num_oov_buckets=3),
        "integers": vocabulary("code", [3, 7, 11], num_oov_buckets=2),
        "hash": hashed("towns", 5),
        "hash of integers": hashed("code", 5, **options),
        "identity": identity("digit", 5),
        "identity or default": identity("code", 8, default_value=0),
        "cross": module.crossed_column(["town", "digit"], 7),
        "cross of several": module.crossed_column(
            ["towns", vocabulary("town", TOWNS, default_value=2)], 11
        ),
        "buckets": module.bucketized_column(module.numeric_column("pair", shape=2), BOUNDS),
    }


def reference(column, features):
    """The values of a column of TensorFlow, in a graph of TensorFlow 1."""
    with tf.Graph().as_default(), v1.Session() as session:
        tensors = {name: tf.constant(value) for name, value in features.items()}
        dense = v1.feature_column.input_layer(tensors, [column])
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        return session.run(dense)


@pytest.mark.parametrize("case", columns(fc))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_indicators_are_those_of_tensorflow(case):
    column = columns(fc)[case]
    found = fc.dense_features(FEATURES, [fc.indicator_column(column)]).numpy()
    assert found.shape == (4, column.buckets)
    expected = reference(theirs.indicator_column(columns(theirs)[case]), FEATURES)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("combiner", fc.COMBINERS)
def test_embeddings_and_linear_models_combine_rows(combiner):
    column = fc.categorical_column_with_vocabulary_list("towns", TOWNS)
    table = np.array([[1, 2], [3, 4], [5, 6]], np.float32)  # Ulm, Bonn, Köln
    with TowerContext("", is_training=False) as tower:
        embedding = fc.embedding_column(
            column, 2, combiner, initializer=lambda shape, dtype: tf.constant(table)
        )
        found = fc.dense_features(FEATURES, [embedding]).numpy()
        fc.linear_model(FEATURES, [column], 2, combiner)
        tower.store["towns/weights"].assign(table)
        tower.store["bias_weights"].assign([10, 20])
    with tower:
        linear = fc.linear_model(FEATURES, [column], 2, combiner).numpy()
    divisor = {"sum": 1, "mean": 2, "sqrtn": np.sqrt(2)}[combiner]
    expected = np.array([[4, 6], [2, 4], [0, 0], [0, 0]], np.float32) / divisor
    expected[2] = table[1]  # one of the two is not in the list
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(linear, np.add(expected, [10, 20]), rtol=1e-6)
    assert set(tower.store.variables) == {
        "bias_weights", "towns/weights", "towns_embedding/embedding_weights",
    }  # fmt: skip


def test_numbers_get_defaults_and_are_normalized():
    number = fc.numeric_column("number", default_value=4.0, normalizer_fn=lambda x: x / 2)
    pair = fc.numeric_column("pair", shape=[2])
    found = fc.dense_features(FEATURES, [pair, number]).numpy()
    expected = [[-1.5, 1, 2], [0.25, 3, 4], [1, 5, 6], [2, 0, 0]]
    np.testing.assert_array_equal(found, expected)


def test_hashes_and_buckets_are_those_of_keras():
    towns = tf.constant(FEATURES["town"][:3])[:, None]
    found = fc.categorical_column_with_hash_bucket("town", 50).ids({"town": towns})
    np.testing.assert_array_equal(found, tf.keras.layers.Hashing(50)(towns))
    values = FEATURES["number"][:3]
    found = fc.bucketized_column(fc.numeric_column("n"), BOUNDS).ids({"n": values})
    np.testing.assert_array_equal(found[:, 0], np.digitize(values[:, 0], BOUNDS))


def test_a_vocabulary_file():
    with open("towns.txt", "w", encoding="utf-8") as file:
        file.write("\n".join([*TOWNS, "Rom"]))
    column = fc.categorical_column_with_vocabulary_file("town", "towns.txt", 3)
    assert column.ids(FEATURES).numpy().tolist() == [[1], [0], [-1], [-1]]
    with pytest.raises(ValueError, match="expected 9 lines in towns.txt, received 4"):
        fc.categorical_column_with_vocabulary_file("town", "towns.txt", 9)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: fc.dense_features({"a": 1}, [fc.numeric_column("b")]), "no feature is named 'b'"),
        (lambda: fc.dense_features(1, [fc.numeric_column("b")]), "features as a dict by name"),
        (
            lambda: fc.dense_features(
                FEATURES, [fc.categorical_column_with_hash_bucket("town", 3)]
            ),
            "wrap it in indicator_column or embedding_column",
        ),
        (
            lambda: fc.dense_features(FEATURES, [fc.numeric_column("pair")] * 2),
            "several of \\['pair'",
        ),
        (lambda: fc.bucketized_column(fc.numeric_column("x"), [2, 1]), "in ascending order"),
        (lambda: fc.indicator_column(fc.numeric_column("x")), "expected a categorical column"),
        (
            lambda: fc.crossed_column(["a", fc.categorical_column_with_hash_bucket("b", 3)], 9),
            "a hash of hashes",
        ),
        (lambda: fc.crossed_column(["a"], 9), "at least two keys"),
        (lambda: fc.categorical_column_with_vocabulary_list("a", ["b", "b"]), "different values"),
        (lambda: fc.categorical_column_with_hash_bucket("a", 0), "positive hash_bucket_size"),
        (
            lambda: fc.embedding_column(fc.categorical_column_with_hash_bucket("a", 3), 2, "max"),
            "expected a combiner of",
        ),
        (
            lambda: fc.categorical_column_with_identity("code", 5).ids(FEATURES),
            "expected 'code' from 0 to 4",
        ),
        (
            lambda: fc.categorical_column_with_hash_bucket("number", 5).ids(FEATURES),
            "expected text or integers as 'number'",
        ),
    ],
)
def test_wrong_columns_are_refused(call, words):
    with pytest.raises(Exception, match=words):
        call()

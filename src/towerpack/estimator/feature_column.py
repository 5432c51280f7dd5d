"""Feature columns: how a model reads the features of a dict.

They have the values of those of `tf.feature_column`, and are made of Keras preprocessing layers and
plain operations. Call `dense_features(features, columns)` in a model function for the input of a
network, and `linear_model(features, columns, units)` for a linear model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.core.similar import nearest_first

keras = tf.keras
MISSING = -1  # the number of no category
COMBINERS = ("mean", "sqrtn", "sum")

Features = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """What a model reads of the features, by a name that is part of the names of its variables."""

    name: str


@dataclass(frozen=True)
class DenseColumn(Column):
    """A column of `size` numbers: `numbers(features)` is float32, `[batch, size]`."""

    size: int
    numbers: Callable[[Features], Any] = field(repr=False)


@dataclass(frozen=True)
class CategoricalColumn(Column):
    """A column of one or several categories out of `buckets` for each sample.

    `ids(features)` is int64, `[batch, n]`, with MISSING where there is no category.
    """

    buckets: int
    ids: Callable[[Features], Any] = field(repr=False)


class BucketizedColumn(CategoricalColumn):
    """A categorical column that a network may also read as it is, as its indicator."""


class HashedColumn(CategoricalColumn):
    """A categorical column that must not be crossed."""


def numeric_column(
    key: str,
    shape: int | Sequence[int] = (1,),
    default_value: Any = None,
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> DenseColumn:
    """Numbers as they are; NaN becomes `default_value`, then `normalizer_fn` is applied.

    >>> column = numeric_column("x", default_value=4, normalizer_fn=lambda x: x / 2)
    >>> dense_features({"x": [1.0, float("nan")]}, [column]).numpy().tolist()
    [[0.5], [2.0]]
    """
    size = int(np.prod(shape))

    def numbers(features: Features) -> Any:
        values = tf.reshape(tf.cast(feature(features, key), tf.float32), [-1, size])
        if default_value is not None:
            default = np.broadcast_to(np.float32(np.ravel(default_value)), [1, size])
            values = tf.where(tf.math.is_nan(values), default, values)
        return values if normalizer_fn is None else normalizer_fn(values)

    return DenseColumn(key, size, numbers)


def bucketized_column(source_column: DenseColumn, boundaries: Sequence[float]) -> BucketizedColumn:
    """The interval in which a number lies; a boundary belongs to the interval above it."""
    if not isinstance(source_column, DenseColumn):
        raise TypeError(f"expected a numeric column, received {source_column!r}")
    if not boundaries or list(boundaries) != sorted(set(boundaries)):
        raise ValueError(f"expected boundaries in ascending order, received {boundaries}")
    intervals, size = len(boundaries) + 1, source_column.size

    def ids(features: Features) -> Any:
        layer = keras.layers.Discretization([float(boundary) for boundary in boundaries])
        found = tf.cast(layer(source_column.numbers(features)), tf.int64)
        return found + intervals * tf.range(size, dtype=tf.int64)

    return BucketizedColumn(f"{source_column.name}_bucketized", intervals * size, ids)


def categorical_column_with_vocabulary_list(
    key: str, vocabulary_list: Sequence[Any], default_value: int = MISSING, num_oov_buckets: int = 0
) -> CategoricalColumn:
    """The place of a text or an integer in a list.

    Values that are not in it have no category, or `default_value`, or are hashed to one of
    `num_oov_buckets` further categories. The text '' and the integer -1 stand for no value.
    """
    vocabulary = np.asarray(vocabulary_list)
    size = len(vocabulary)
    if not size or len(set(vocabulary.tolist())) < size:
        raise ValueError(f"expected a vocabulary of different values, received {vocabulary_list}")
    if num_oov_buckets and default_value != MISSING:
        raise ValueError("expected default_value or num_oov_buckets, received both")

    def ids(features: Features) -> Any:
        given = categories(features, key)
        values = tf.constant(vocabulary, given.dtype)
        # A search among sorted hashes, and not a lookup table, which an export could not contain.
        codes = hashed(values)
        order = tf.argsort(codes)
        found = tf.searchsorted(tf.gather(codes, order), tf.reshape(hashed(given), [-1]))
        place = tf.gather(order, tf.reshape(tf.minimum(found, size - 1), tf.shape(given)))
        other = tf.constant(default_value, tf.int64)
        if num_oov_buckets:
            other = size + tf.strings.to_hash_bucket_fast(as_text(given), num_oov_buckets)
        known = tf.gather(values, place) == given
        return masked(given, tf.where(known, tf.cast(place, tf.int64), other))

    return CategoricalColumn(key, size + num_oov_buckets, ids)


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str | Path,
    vocabulary_size: int | None = None,
    default_value: int = MISSING,
    num_oov_buckets: int = 0,
) -> CategoricalColumn:
    """The same with a list in a file, a text in each line, of which the first are used."""
    lines = Path(vocabulary_file).read_text(encoding="utf-8").splitlines()
    if vocabulary_size is not None and len(lines) < vocabulary_size:
        raise ValueError(
            f"expected {vocabulary_size} lines in {vocabulary_file}, received {len(lines)}"
        )
    return categorical_column_with_vocabulary_list(
        key, lines[:vocabulary_size], default_value, num_oov_buckets
    )


def categorical_column_with_hash_bucket(key: str, hash_bucket_size: int) -> HashedColumn:
    """A hash of a text or an integer; different values may share a category."""

    def ids(features: Features) -> Any:
        given = categories(features, key)
        found = keras.layers.Hashing(hash_bucket_size)(as_text(given))
        return masked(given, tf.cast(found, tf.int64))

    return HashedColumn(key, positive(hash_bucket_size, "hash_bucket_size"), ids)


def categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> CategoricalColumn:
    """The number itself, from 0; any other is an error, or `default_value`."""

    def ids(features: Features) -> Any:
        given = categories(features, key)
        inside = (given >= 0) & (given < num_buckets)
        if default_value is not None:
            return masked(given, tf.where(inside, given, tf.constant(default_value, tf.int64)))
        message = f"expected {key!r} from 0 to {num_buckets - 1}; pass default_value="
        return checked(given, inside | (given == MISSING), message)

    return CategoricalColumn(key, positive(num_buckets, "num_buckets"), ids)


def crossed_column(
    keys: Sequence[str | CategoricalColumn], hash_bucket_size: int
) -> CategoricalColumn:
    """A hash of the combination of several features, or of categorical columns."""
    for key in keys:
        if isinstance(key, HashedColumn) or not isinstance(key, str | CategoricalColumn):
            raise TypeError(
                f"expected names of features or categorical columns without hashes, received "
                f"{key!r}; pass the name of the feature, since a hash of hashes loses categories"
            )
    if len(keys) < 2:
        raise ValueError(f"expected at least two keys to cross, received {list(keys)}")

    def ids(features: Features) -> Any:
        # Of a feature all values, also '' and -1.
        parts = [
            categories(features, key) if isinstance(key, str) else present(key.ids(features))
            for key in keys
        ]
        crossed = tf.sparse.cross_hashed(parts, hash_bucket_size)
        return tf.sparse.to_dense(crossed, default_value=MISSING)

    name = "_X_".join(sorted(key if isinstance(key, str) else key.name for key in keys))
    return HashedColumn(name, positive(hash_bucket_size, "hash_bucket_size"), ids)


def indicator_column(categorical_column: CategoricalColumn) -> DenseColumn:
    """How often each category occurs in a sample: one-hot if it has one."""
    column = categorical(categorical_column)

    def numbers(features: Features) -> Any:
        return tf.reduce_sum(tf.one_hot(column.ids(features), column.buckets), axis=1)

    return DenseColumn(f"{column.name}_indicator", column.buckets, numbers)


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    trainable: bool = True,
) -> DenseColumn:
    """A trained vector for each category; several of one sample are combined."""
    column = categorical(categorical_column)
    if combiner not in COMBINERS:
        raise ValueError(f"expected a combiner of {COMBINERS}, received {combiner!r}")
    name = f"{column.name}_embedding"

    def numbers(features: Features) -> Any:
        table = v1.get_variable(
            f"{name}/embedding_weights",
            [column.buckets, dimension],
            initializer=initializer or v1.truncated_normal_initializer(stddev=dimension**-0.5),
            trainable=trainable,
        )
        return combined(table, column.ids(features), combiner)

    return DenseColumn(name, positive(dimension, "dimension"), numbers)


def dense_features(features: Features, columns: Sequence[Column]) -> Any:
    """The dense columns side by side, in the order of their names: `[batch, numbers]`."""
    parts = []
    for column in by_name(columns):
        if isinstance(column, BucketizedColumn):
            column = indicator_column(column)
        if not isinstance(column, DenseColumn):
            raise TypeError(
                f"expected dense columns for a network, received the categorical {column!r}; wrap "
                "it in indicator_column or embedding_column"
            )
        parts.append(column.numbers(features))
    return tf.concat(parts, axis=1)


def linear_model(
    features: Features, columns: Sequence[Column], units: int = 1, sparse_combiner: str = "sum"
) -> Any:
    """A weighted sum of all columns and a bias, zero at first: `[batch, units]`."""
    zeros = v1.zeros_initializer()
    parts = []
    for column in by_name(columns):
        name = f"{column.name}/weights"
        if isinstance(column, CategoricalColumn):
            table = v1.get_variable(name, [column.buckets, units], initializer=zeros)
            parts.append(combined(table, column.ids(features), sparse_combiner))
        elif isinstance(column, DenseColumn):
            table = v1.get_variable(name, [column.size, units], initializer=zeros)
            parts.append(tf.matmul(column.numbers(features), table))
    return tf.add_n(parts) + v1.get_variable("bias_weights", [units], initializer=zeros)


def feature(features: Features, key: str) -> Any:
    """A feature as a tensor."""
    if not isinstance(features, Mapping):
        raise TypeError(f"expected features as a dict by name, received {features!r}")
    if key not in features:
        raise KeyError(f"no feature is named {key!r}; there are {nearest_first(key, features)}")
    return tf.convert_to_tensor(features[key])


def categories(features: Features, key: str) -> Any:
    """A feature as texts or int64, `[batch, n]`."""
    values = feature(features, key)
    if not (values.dtype == tf.string or values.dtype.is_integer):
        raise TypeError(f"expected text or integers as {key!r}, received {values.dtype.name}")
    values = values if values.dtype == tf.string else tf.cast(values, tf.int64)
    return values[:, None] if values.shape.rank == 1 else values


def masked(given: Any, ids: Any) -> Any:
    """The categories, MISSING where nothing is given: '' or -1."""
    nothing = tf.constant("" if given.dtype == tf.string else MISSING, given.dtype)
    return tf.where(given == nothing, tf.constant(MISSING, tf.int64), ids)


def checked(values: Any, condition: Any, message: str) -> Any:
    """The values; an error of TensorFlow unless the condition is true for all of them."""
    check = v1.assert_equal(condition, True, [values], message=message)
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(values)


def present(ids: Any) -> Any:
    """The categories that are not missing, as a sparse tensor."""
    places = tf.where(ids != MISSING)
    return tf.SparseTensor(places, tf.gather_nd(ids, places), tf.shape(ids, out_type=tf.int64))


def combined(table: Any, ids: Any, combiner: str) -> Any:
    """The rows of a table for each sample's categories, added up or averaged."""
    exists = tf.cast(ids >= 0, tf.float32)
    rows = tf.gather(table, tf.maximum(ids, 0)) * exists[..., None]
    total = tf.reduce_sum(rows, axis=1)
    if combiner == "sum":
        return total
    number = tf.reduce_sum(exists, axis=1, keepdims=True)
    return tf.math.divide_no_nan(total, tf.sqrt(number) if combiner == "sqrtn" else number)


def as_text(values: Any) -> Any:
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def hashed(values: Any) -> Any:
    """Texts as integers of 63 bits; integers as they are."""
    if values.dtype != tf.string:
        return values
    return tf.strings.to_hash_bucket_fast(values, (1 << 63) - 1)


def by_name(columns: Sequence[Column]) -> list[Column]:
    """The columns in the order of their names, which must differ."""
    names = [column.name for column in columns]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"expected columns of different names, received several of {doubled}")
    return sorted(columns, key=lambda column: column.name)


def categorical(column: Any) -> CategoricalColumn:
    if not isinstance(column, CategoricalColumn):
        raise TypeError(f"expected a categorical column, received {column!r}")
    return column


def positive(value: int, name: str) -> int:
    if value < 1:
        raise ValueError(f"expected a positive {name}, received {value}")
    return value

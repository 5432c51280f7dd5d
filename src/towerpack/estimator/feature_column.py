"""Feature columns: how a model reads the features of a dict.

They are the columns of `tf.feature_column` with the same values, made of Keras preprocessing layers
and plain operations. Call `dense_features(features, columns)` in a model function for the input of
a network, and `linear_model(features, columns, units)` for a linear model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.core.similar import nearest_first

keras = tf.keras
MISSING = -1  # the number of no category
COMBINERS = ("mean", "sqrtn", "sum")


@dataclass(frozen=True)
class DenseColumn:
    """A column that gives `size` numbers for each sample."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def size(self) -> int:
        raise NotImplementedError

    def dense(self, features: Mapping[str, Any]) -> Any:
        """The numbers of a batch: float32, `[batch, size]`."""
        raise NotImplementedError


@dataclass(frozen=True)
class CategoricalColumn:
    """A column that gives each sample one or several categories out of `buckets`."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def buckets(self) -> int:
        raise NotImplementedError

    def ids(self, features: Mapping[str, Any]) -> Any:
        """The numbers of the categories: int64, `[batch, n]`; MISSING where there is none."""
        raise NotImplementedError


@dataclass(frozen=True)
class NumericColumn(DenseColumn):
    """See `numeric_column`."""

    key: str
    shape: tuple[int, ...]
    default_value: Any
    normalizer_fn: Callable[[Any], Any] | None

    @property
    def name(self) -> str:
        return self.key

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def dense(self, features: Mapping[str, Any]) -> Any:
        values = tf.cast(feature(features, self.key), tf.float32)
        values = tf.reshape(values, [-1, self.size])
        if self.default_value is not None:
            default = tf.broadcast_to(
                tf.reshape(tf.constant(self.default_value, tf.float32), [1, -1]), tf.shape(values)
            )
            values = tf.where(tf.math.is_nan(values), default, values)
        return values if self.normalizer_fn is None else self.normalizer_fn(values)


@dataclass(frozen=True)
class BucketizedColumn(DenseColumn, CategoricalColumn):
    """See `bucketized_column`."""

    source: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.source.name}_bucketized"

    @property
    def _per_number(self) -> int:
        return len(self.boundaries) + 1

    @property
    def buckets(self) -> int:
        return self._per_number * self.source.size

    size = buckets

    def ids(self, features: Mapping[str, Any]) -> Any:
        layer = keras.layers.Discretization(list(self.boundaries))
        found = tf.cast(layer(self.source.dense(features)), tf.int64)
        return found + self._per_number * tf.range(self.source.size, dtype=tf.int64)

    def dense(self, features: Mapping[str, Any]) -> Any:
        return counts(self.ids(features), self.buckets)


@dataclass(frozen=True)
class VocabularyColumn(CategoricalColumn):
    """See `categorical_column_with_vocabulary_list`."""

    key: str
    vocabulary: tuple[Any, ...]
    default_value: int
    num_oov_buckets: int

    @property
    def name(self) -> str:
        return self.key

    @property
    def buckets(self) -> int:
        return len(self.vocabulary) + self.num_oov_buckets

    def ids(self, features: Mapping[str, Any]) -> Any:
        given = categories(features, self.key)
        values = tf.constant(self.vocabulary)
        if given.dtype != tf.string:
            given, values = tf.cast(given, tf.int64), tf.cast(values, tf.int64)
        # A search among sorted hashes and not a lookup table, which exports cannot contain.
        codes = hashed(values)
        order = tf.argsort(codes)
        found = tf.searchsorted(tf.gather(codes, order), tf.reshape(hashed(given), [-1]))
        place = tf.reshape(
            tf.gather(order, tf.minimum(found, len(self.vocabulary) - 1)), tf.shape(given)
        )
        other = tf.fill(tf.shape(given), tf.constant(self.default_value, tf.int64))
        if self.num_oov_buckets:
            text = as_text(given)
            other = len(self.vocabulary) + tf.strings.to_hash_bucket_fast(
                text, self.num_oov_buckets
            )
        known = tf.gather(values, place) == given
        return masked(given, tf.where(known, tf.cast(place, tf.int64), other))


@dataclass(frozen=True)
class HashedColumn(CategoricalColumn):
    """See `categorical_column_with_hash_bucket`."""

    key: str
    hash_bucket_size: int

    @property
    def name(self) -> str:
        return self.key

    @property
    def buckets(self) -> int:
        return self.hash_bucket_size

    def ids(self, features: Mapping[str, Any]) -> Any:
        given = categories(features, self.key)
        layer = keras.layers.Hashing(self.hash_bucket_size)
        return masked(given, tf.cast(layer(as_text(given)), tf.int64))


@dataclass(frozen=True)
class IdentityColumn(CategoricalColumn):
    """See `categorical_column_with_identity`."""

    key: str
    num_buckets: int
    default_value: int | None

    @property
    def name(self) -> str:
        return self.key

    @property
    def buckets(self) -> int:
        return self.num_buckets

    def ids(self, features: Mapping[str, Any]) -> Any:
        given = tf.cast(categories(features, self.key), tf.int64)
        inside = (given >= 0) & (given < self.num_buckets)
        if self.default_value is not None:
            return masked(given, tf.where(inside, given, self.default_value))
        check = v1.assert_equal(
            inside | (given == MISSING), True,
            message=f"expected {self.key!r} from 0 to {self.num_buckets - 1}; pass default_value=",
        )  # fmt: skip
        with tf.control_dependencies([check] if check is not None else []):
            return tf.identity(given)


@dataclass(frozen=True)
class CrossedColumn(CategoricalColumn):
    """See `crossed_column`."""

    keys: tuple[Any, ...]
    hash_bucket_size: int

    @property
    def name(self) -> str:
        return "_X_".join(sorted(k if isinstance(k, str) else k.name for k in self.keys))

    @property
    def buckets(self) -> int:
        return self.hash_bucket_size

    def ids(self, features: Mapping[str, Any]) -> Any:
        parts = []
        for key in self.keys:
            if isinstance(key, str):  # all values, also '' and -1
                values = categories(features, key)
                parts.append(values if values.dtype == tf.string else tf.cast(values, tf.int64))
            else:
                parts.append(present(key.ids(features)))
        crossed = tf.sparse.cross_hashed(parts, self.hash_bucket_size)
        return tf.sparse.to_dense(crossed, default_value=MISSING)


@dataclass(frozen=True)
class IndicatorColumn(DenseColumn):
    """See `indicator_column`."""

    categorical: CategoricalColumn

    @property
    def name(self) -> str:
        return f"{self.categorical.name}_indicator"

    @property
    def size(self) -> int:
        return self.categorical.buckets

    def dense(self, features: Mapping[str, Any]) -> Any:
        return counts(self.categorical.ids(features), self.size)


@dataclass(frozen=True)
class EmbeddingColumn(DenseColumn):
    """See `embedding_column`."""

    categorical: CategoricalColumn
    dimension: int
    combiner: str
    initializer: Any
    trainable: bool

    @property
    def name(self) -> str:
        return f"{self.categorical.name}_embedding"

    @property
    def size(self) -> int:
        return self.dimension

    def dense(self, features: Mapping[str, Any]) -> Any:
        initializer = self.initializer
        if initializer is None:
            initializer = v1.truncated_normal_initializer(stddev=self.dimension**-0.5)
        table = v1.get_variable(
            f"{self.name}/embedding_weights", [self.categorical.buckets, self.dimension],
            initializer=initializer, trainable=self.trainable,
        )  # fmt: skip
        return combined(table, self.categorical.ids(features), self.combiner)


Column = DenseColumn | CategoricalColumn


def numeric_column(
    key: str,
    shape: int | Sequence[int] = (1,),
    default_value: Any = None,
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> NumericColumn:
    """Numbers as they are; NaN becomes `default_value`, then `normalizer_fn` is applied.

    >>> dense_features({"x": [1.0, 3.0]}, [numeric_column("x", normalizer_fn=lambda x: x / 2)])
    <tf.Tensor: shape=(2, 1), dtype=float32, numpy=
    array([[0.5],
           [1.5]], dtype=float32)>
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if np.ndim(default_value):
        default_value = tuple(np.ravel(default_value).tolist())
    return NumericColumn(key, sizes, default_value, normalizer_fn)


def bucketized_column(
    source_column: NumericColumn, boundaries: Sequence[float]
) -> BucketizedColumn:
    """The interval in which a number lies; a boundary belongs to the interval above it."""
    if not isinstance(source_column, NumericColumn):
        raise TypeError(f"expected a numeric column, received {source_column!r}")
    if not boundaries or list(boundaries) != sorted(set(boundaries)):
        raise ValueError(f"expected boundaries in ascending order, received {boundaries}")
    return BucketizedColumn(source_column, tuple(map(float, boundaries)))


def categorical_column_with_vocabulary_list(
    key: str, vocabulary_list: Sequence[Any], default_value: int = MISSING, num_oov_buckets: int = 0
) -> VocabularyColumn:
    """The place of a text or an integer in a list.

    Values that are not in it have no category, or `default_value`, or are hashed to one of
    `num_oov_buckets` further categories. The text '' and the integer -1 stand for no value.
    """
    vocabulary = tuple(np.asarray(vocabulary_list).tolist())
    if not vocabulary or len(set(vocabulary)) < len(vocabulary):
        raise ValueError(f"expected a vocabulary of different values, received {vocabulary_list}")
    if num_oov_buckets and default_value != MISSING:
        raise ValueError("expected default_value or num_oov_buckets, received both")
    return VocabularyColumn(key, vocabulary, default_value, num_oov_buckets)


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: str | Path,
    vocabulary_size: int | None = None,
    default_value: int = MISSING,
    num_oov_buckets: int = 0,
) -> VocabularyColumn:
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
    return HashedColumn(key, _positive(hash_bucket_size, "hash_bucket_size"))


def categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> IdentityColumn:
    """The number itself, from 0; any other is an error, or `default_value`."""
    return IdentityColumn(key, _positive(num_buckets, "num_buckets"), default_value)


def crossed_column(keys: Sequence[str | CategoricalColumn], hash_bucket_size: int) -> CrossedColumn:
    """A hash of the combination of several features, or of categorical columns."""
    for key in keys:
        if isinstance(key, HashedColumn) or not isinstance(key, str | CategoricalColumn):
            raise TypeError(
                f"expected names of features or categorical columns without hashes, received "
                f"{key!r}; pass the name of the feature, since a hash of hashes loses categories"
            )
    if len(keys) < 2:
        raise ValueError(f"expected at least two keys to cross, received {list(keys)}")
    return CrossedColumn(tuple(keys), _positive(hash_bucket_size, "hash_bucket_size"))


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """How often each category occurs in a sample: one-hot if it has one."""
    return IndicatorColumn(_categorical(categorical_column))


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """A trained vector for each category; several of one sample are combined."""
    if combiner not in COMBINERS:
        raise ValueError(f"expected a combiner of {COMBINERS}, received {combiner!r}")
    return EmbeddingColumn(
        _categorical(categorical_column), _positive(dimension, "dimension"), combiner, initializer,
        trainable,
    )  # fmt: skip


def dense_features(features: Mapping[str, Any], columns: Sequence[Column]) -> Any:
    """The dense columns side by side, in the order of their names: `[batch, numbers]`."""
    parts = []
    for column in _sorted(columns):
        if not isinstance(column, DenseColumn):
            raise TypeError(
                f"expected dense columns for a network, received the categorical {column!r}; wrap "
                "it in indicator_column or embedding_column"
            )
        parts.append(column.dense(features))
    return tf.concat(parts, axis=1)


def linear_model(
    features: Mapping[str, Any],
    columns: Sequence[Column],
    units: int = 1,
    sparse_combiner: str = "sum",
) -> Any:
    """A weighted sum of all columns and a bias, zero at first: `[batch, units]`."""
    zeros = v1.zeros_initializer()
    total: Any = 0.0
    for column in _sorted(columns):
        size = column.size if isinstance(column, DenseColumn) else column.buckets
        table = v1.get_variable(f"{column.name}/weights", [size, units], initializer=zeros)
        if isinstance(column, CategoricalColumn):
            total += combined(table, column.ids(features), sparse_combiner)
        else:
            total += tf.matmul(column.dense(features), table)
    return total + v1.get_variable("bias_weights", [units], initializer=zeros)


def feature(features: Mapping[str, Any], key: str) -> Any:
    """A feature as a tensor."""
    if not isinstance(features, Mapping):
        raise TypeError(f"expected features as a dict by name, received {features!r}")
    if key not in features:
        raise KeyError(f"no feature is named {key!r}; there are {nearest_first(key, features)}")
    return tf.convert_to_tensor(features[key])


def categories(features: Mapping[str, Any], key: str) -> Any:
    """A feature as values `[batch, n]`."""
    values = feature(features, key)
    if not (values.dtype == tf.string or values.dtype.is_integer):
        raise TypeError(f"expected text or integers as {key!r}, received {values.dtype.name}")
    return values[:, None] if values.shape.rank == 1 else values


def masked(given: Any, ids: Any) -> Any:
    """The categories, MISSING where nothing is given: '' or -1."""
    nothing = tf.constant("" if given.dtype == tf.string else MISSING, given.dtype)
    return tf.where(given == nothing, tf.constant(MISSING, tf.int64), ids)


def counts(ids: Any, buckets: int) -> Any:
    """How often each category occurs in a sample."""
    return tf.reduce_sum(tf.one_hot(ids, buckets), axis=1)


def combined(table: Any, ids: Any, combiner: str) -> Any:
    """The rows of a table for each sample's categories, added up or averaged."""
    present = tf.cast(ids >= 0, tf.float32)
    rows = tf.gather(table, tf.maximum(ids, 0)) * present[..., None]
    total = tf.reduce_sum(rows, axis=1)
    if combiner == "sum":
        return total
    number = tf.reduce_sum(present, axis=1, keepdims=True)
    number = tf.sqrt(number) if combiner == "sqrtn" else number
    return tf.math.divide_no_nan(total, number)


def as_text(values: Any) -> Any:
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def hashed(values: Any) -> Any:
    """Texts as integers of 63 bits; integers as they are."""
    if values.dtype != tf.string:
        return values
    return tf.strings.to_hash_bucket_fast(values, (1 << 63) - 1)


def present(ids: Any) -> Any:
    """The categories that are not missing, as a sparse tensor."""
    places = tf.where(ids != MISSING)
    return tf.SparseTensor(places, tf.gather_nd(ids, places), tf.shape(ids, out_type=tf.int64))


def _sorted(columns: Sequence[Column]) -> list[Column]:
    names = [column.name for column in columns]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"expected columns of different names, received several of {doubled}")
    return sorted(columns, key=lambda column: column.name)


def _categorical(column: Any) -> CategoricalColumn:
    if not isinstance(column, CategoricalColumn):
        raise TypeError(f"expected a categorical column, received {column!r}")
    return column


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise ValueError(f"expected a positive {name}, received {value}")
    return value

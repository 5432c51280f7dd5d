"""What an `input_fn` returns, as batches of (features, labels) and as the input of a trainer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, ClassWeightData, DataFromArrays, MapData, RepeatedData
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.classes import RESAMPLE
from towerpack.estimator.model import call_with
from towerpack.estimator.spec import ModeKeys
from towerpack.input_source import InputSource, TensorInput, TFDatasetInput
from towerpack.keras.data import LOOKED_AT, Form, OnePass, in_order, leaves

keras = tf.keras


class InputData:
    """The data of an `input_fn`, which is called once: a flow, a `tf.data.Dataset` or tensors.

    Each batch is `(features, labels)`, or the features alone. Tensors are one batch, which training
    uses in every step.
    """

    def __init__(self, input_fn: Callable[..., Any], mode: str, **optional: Any):
        if not callable(input_fn):
            raise TypeError(
                f"expected a function as input_fn, received {input_fn!r}; write "
                "input_fn=lambda: ..., so that each call of the estimator reads the data anew"
            )
        self.data = call_with(input_fn, mode=mode, **optional)
        self._labeled = mode != ModeKeys.PREDICT
        if isinstance(self.data, tf.data.Dataset):
            self.form = Form([self._triple(self.data.element_spec)])
        elif isinstance(self.data, DataFlow):
            found = [self._triple(each) for each in itertools.islice(self._read(), LOOKED_AT)]
            if not found:
                raise ValueError("expected an input_fn with data, received an empty flow")
            self.form = Form(found)
        else:
            self.form = Form([self._triple(self.data)])

    def batches(self, steps: int | None = None) -> Iterator[list[Any]]:
        """The flat batches of one epoch, at most `steps` of them."""
        return (
            self.form.flat(self._triple(each)) for each in itertools.islice(self._read(), steps)
        )

    def steps(self, batches_per_step: int) -> int | None:
        """After how many steps the data ends, if the source does not end by itself."""
        if isinstance(self.data, tf.data.Dataset):
            size = int(self.data.cardinality())
            return size // batches_per_step if size >= 0 else None
        return None

    @property
    def endless(self) -> bool:
        """Whether it is known that the data never ends."""
        if isinstance(self.data, tf.data.Dataset):
            return int(self.data.cardinality()) == tf.data.INFINITE_CARDINALITY
        return not isinstance(self.data, DataFlow)

    def source(self) -> InputSource:
        """The batches as a trainer reads them, in order and each once."""
        if isinstance(self.data, tf.data.Dataset):
            return TFDatasetInput(self.data.map(lambda *parts: tuple(leaves(triple(parts)))))
        if isinstance(self.data, DataFlow):
            return OnePass(MapData(self.data, lambda batch: self.form.flat(triple(batch))))
        batch = [tf.constant(array) for array in self.form.flat(triple(self.data))]
        return TensorInput(lambda: batch)

    def _triple(self, batch: Any) -> tuple[Any, Any, None]:
        features, labels, _ = triple(batch)
        return features, labels if self._labeled else None, None

    def _read(self) -> Iterator[Any]:
        if isinstance(self.data, DataFlow):
            return in_order(self.data)
        return iter(self.data) if isinstance(self.data, tf.data.Dataset) else iter([self.data])


def triple(batch: Any) -> tuple[Any, Any, None]:
    """(features, labels, None) of what an `input_fn` gives as a batch."""
    if not isinstance(batch, tuple | list):
        return batch, None, None
    if len(batch) not in (1, 2):
        raise ValueError(
            f"expected batches of (features, labels), received one of {len(batch)} parts; put "
            "several features into a dict: ({'age': age, 'town': town}, labels)"
        )
    return batch[0], batch[1] if len(batch) == 2 else None, None


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    class_weight: str | None = None,
) -> Callable[..., DataFlow]:
    """An `input_fn` of arrays: batches of `x`, an array or a dict of them, with the labels `y`.

    Each sample comes `num_epochs` times, or endlessly with None. Only the last batch may be
    smaller. By default the samples are shuffled for training only, so predictions keep their order.
    The order depends on the epoch, and on the step at which a call of `train` begins.

    With `class_weight='resample'`, training draws every class of `y` equally often: an epoch
    repeats the samples of the small classes. Weights of classes belong to the classifier.

    >>> flow = numpy_input_fn({"x": np.arange(3)}, np.zeros(3), 2)()
    >>> [features["x"].tolist() for features, _ in flow]
    [[0, 1], [2]]
    """
    if batch_size < 1:
        raise ValueError(f"expected a positive batch_size, received {batch_size}")
    if class_weight not in (None, RESAMPLE):
        raise ValueError(
            f"expected class_weight={RESAMPLE!r} or None, received {class_weight!r}: pass "
            "class_weight=towerpack.class_weights(labels, 'balanced') to the classifier"
        )
    if class_weight is not None and (y is None or keras.tree.is_nested(y)):
        raise ValueError("expected one array of labels as y, to draw its classes equally often")
    element = keras.tree.map_structure(lambda a: None if a is None else np.asarray(a), (x, y, None))
    columns = leaves(element)

    def input_fn(mode: str = ModeKeys.EVAL) -> DataFlow:
        shuffled = mode == ModeKeys.TRAIN if shuffle is None else shuffle
        resampled = class_weight is not None and mode == ModeKeys.TRAIN
        source = DataFromArrays(*columns, shuffle=shuffled and not resampled)
        source.order_is_chosen = not shuffled
        flow: DataFlow = ClassWeightData(source, RESAMPLE) if resampled else source
        if num_epochs != 1:
            flow = RepeatedData(flow, -1 if num_epochs is None else num_epochs)
        return MapData(BatchData(flow, batch_size, remainder=True), nested)

    def nested(batch: Any) -> Any:
        left = iter(batch)
        features, labels, _ = keras.tree.map_structure(
            lambda column: None if column is None else next(left), element
        )
        return [features] if y is None else [features, labels]

    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    class_weight: str | None = None,
) -> Callable[..., DataFlow]:
    """`numpy_input_fn` of a data frame: the features are its columns, by name.

    The labels `y` are a series, or a data frame with several targets.
    """
    if not hasattr(x, "columns"):
        raise TypeError(f"expected a data frame as x, received {x!r}; use numpy_input_fn")
    features = {str(name): _column(x[name]) for name in x.columns}
    labels: Any = None
    if y is not None:
        labels = {str(n): _column(y[n]) for n in y.columns} if hasattr(y, "columns") else _column(y)
        if not np.array_equal(np.asarray(x.index), np.asarray(y.index)):
            raise ValueError("expected x and y with the same index")
    return numpy_input_fn(features, labels, batch_size, num_epochs, shuffle, class_weight)


def _column(series: Any) -> np.ndarray:
    values = series.to_numpy()
    if values.dtype.kind != "O":
        return np.asarray(values)
    if not all(isinstance(value, str | bytes) for value in values):
        raise TypeError(
            f"expected text in the column {series.name!r}, received objects such as {values[0]!r}; "
            "fill in what is missing, or convert it to numbers"
        )
    return np.array(values.tolist())

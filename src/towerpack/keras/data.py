"""What `fit` accepts as data: arrays, a dataset, a PyDataset, a generator or a flow.

All of them become flat batches, one array for each input of the tower, and a `Form` that makes
(x, y, sample_weight) of them again.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.dataflow import (
    BalancedData,
    BatchData,
    DataFromArrays,
    DataFromGenerator,
    MapData,
    RNGDataFlow,
)
from towerpack.dataflow.base import DataFlow, DataFlowTerminated
from towerpack.dataflow.classes import as_classes
from towerpack.input_source import InputSource, QueueInput, TFDatasetInput

keras = tf.keras
unpacked = keras.utils.unpack_x_y_sample_weight

BATCH_SIZE = 32  # as in Keras
LOOKED_AT = 2  # batches whose shapes are compared, as Keras does: dimensions that differ stay open
PARTS = ("x", "y", "sample_weight")


class Data(NamedTuple):
    """Flat batches to train on, and their form."""

    source: InputSource
    form: Form


class Form:
    """The structure of a batch and the `signature` of its arrays, from one or two examples.

    An example is (x, y, sample_weight): nested arrays or specs, and None for what is missing.
    """

    def __init__(
        self, examples: Sequence[Any], class_weight: Mapping[int, float] | None = None
    ) -> None:
        self._structure, self._class_weight = examples[0], class_weight
        if class_weight and examples[0][2] is not None:
            raise ValueError("expected class_weight or sample_weight, received both")
        if class_weight and keras.tree.is_nested(examples[0][1]):
            raise ValueError("class_weight is for a model with one output; use sample_weight")
        found = keras.tree.flatten_with_path(examples[0])
        paths = [path for path, leaf in found if leaf is not None]
        columns = zip(*map(leaves, examples), strict=True)
        self.signature = [self._spec(*pair) for pair in zip(paths, columns, strict=True)]

    @staticmethod
    def _spec(path: Sequence[Any], column: Sequence[Any]) -> Any:
        name = "_".join([PARTS[path[0]], *map(str, path[1:])])
        if not all(isinstance(x, tf.TensorSpec) or hasattr(x, "shape") for x in column):
            column = [np.asarray(x) for x in column]
        if any(isinstance(x, tf.SparseTensor | tf.RaggedTensor) for x in column) or any(
            isinstance(x, tf.TypeSpec) and not isinstance(x, tf.TensorSpec) for x in column
        ):
            raise TypeError(
                f"expected dense arrays, received sparse or ragged ones as {name}: make them dense "
                "or pad them, or use model.fit"
            )
        shape = None
        if all(tf.TensorShape(x.shape).rank is not None for x in column):
            dimensions = list(zip(*[tuple(x.shape)[1:] for x in column], strict=True))
            shape = [None, *(d[0] if len(set(d)) == 1 else None for d in dimensions)]
        kind = getattr(column[0].dtype, "kind", "")
        dtype = tf.string if kind in ("U", "S", "O") else column[0].dtype
        return tf.TensorSpec(shape, dtype, re.sub(r"[^\w.]", "_", name))

    def flat(self, element: Any) -> list[Any]:
        """The arrays of a batch (x, y, sample_weight), in the order of the signature."""
        return [x if tf.is_tensor(x) else np.asarray(x) for x in leaves(element)]

    def unpack(self, tensors: Sequence[Any]) -> tuple[Any, Any, Any]:
        """From flat tensors to (x, y, sample_weight)."""
        left = iter(tensors)
        x, y, weight = keras.tree.map_structure(
            lambda leaf: None if leaf is None else next(left), self._structure
        )
        if self._class_weight:
            weight = self._weights_of(y)
        return x, y, weight

    def _weights_of(self, y: Any) -> Any:
        """The weight of each sample's class; 1 for a class that has none."""
        if y.shape.rank > 1:
            y = tf.squeeze(y, -1) if y.shape[-1] == 1 else tf.argmax(y, -1)
        label = tf.cast(tf.round(y) if y.dtype.is_floating else y, tf.int64)
        weight = tf.ones(tf.shape(label), keras.config.floatx())
        for number, value in (self._class_weight or {}).items():
            weight = tf.where(label == number, tf.cast(value, weight.dtype), weight)
        return weight


def training_data(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    model: Any,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = True,
    class_weight: Mapping[int, float] | None = None,
    resample: bool = False,
    towers: int = 1,
) -> Data:
    """What `fit` trains on. Batches are those of Keras, divided over the towers.

    A flow of the user's is the exception: each tower gets batches of its own, as everywhere in
    towerpack. With `resample`, each class of the arrays is drawn equally often.
    """
    shuffled = bool(shuffle) and shuffle != "batch"  # a batch's mean does not depend on its order
    if isinstance(x, DataFlow):
        with x.iterate(0) as datapoints:
            examples = [by_model(d, model) for d in itertools.islice(datapoints, LOOKED_AT)]
        form = Form(examples, class_weight)
        return Data(QueueInput(MapData(x, lambda d: form.flat(by_model(d, model)))), form)
    if isinstance(x, tf.data.Dataset):
        only_x(y, sample_weight)
        form = Form([unpacked(x.element_spec)], class_weight)
        data = with_size(x, steps)
        if towers == 1:
            return Data(TFDatasetInput(data.map(lambda *parts: tuple(leaves(parts)))), form)
        data = data.take(data.cardinality()) if steps is None else data
        flow: DataFlow = DataFromGenerator(lambda: map(form.flat, map(unpacked, data)))
        size = int(data.cardinality())
        return Data(QueueInput(Divided(flow, towers, size if size > 0 else None)), form)
    if isinstance(x, keras.utils.PyDataset):
        only_x(y, sample_weight)
        found = range(min(LOOKED_AT, x.num_batches or LOOKED_AT))
        form = Form([unpacked(x[number]) for number in found], class_weight)
        flow = PyDatasetFlow(x, form.flat, shuffled)
        return Data(QueueInput(Divided(flow, towers) if towers > 1 else flow), form)
    if isinstance(x, Iterator):
        only_x(y, sample_weight)
        first = [unpacked(element) for element in itertools.islice(x, LOOKED_AT)]
        form = Form(first, class_weight)
        elements = map(form.flat, itertools.chain(first, map(unpacked, x)))
        flow = DataFromGenerator(lambda: elements)
        return Data(OnePass(Divided(flow, towers) if towers > 1 else flow), form)
    element = arrays_of(x, y, sample_weight)
    form = Form([element], class_weight)
    columns = leaves(element)
    seed = v1.get_seed(1)[0]
    source: DataFlow
    if resample:
        source = BalancedData(DataFromArrays(*columns), as_classes(element[1]).tolist(), seed=seed)
    else:
        source = DataFromArrays(*columns, shuffle=shuffled, seed=seed)
        source.order_is_chosen = not shuffled
    size = batch_size or (math.ceil(len(source) / steps) if steps else BATCH_SIZE)
    if len(source) % size == 0 and size % towers == 0:
        return Data(QueueInput(BatchData(source, size // towers)), form)
    batches = BatchData(source, size, remainder=True)
    return Data(QueueInput(Divided(batches, towers) if towers > 1 else batches), form)


def passes(data: Any, *, model: Any, batch_size: int | None = None) -> Callable[[], Iterable[Any]]:
    """One pass over a validation set: batches (x, y, sample_weight), in their order."""
    if not isinstance(data, tuple | list):
        data = (data,)
    x, y, weight = unpacked(data)
    if isinstance(x, DataFlow):
        return lambda: (by_model(d, model) for d in in_order(x))
    if isinstance(x, tf.data.Dataset | Iterator):
        return lambda: map(unpacked, x)
    if isinstance(x, keras.utils.PyDataset):
        return lambda: in_order(PyDatasetFlow(x, unpacked, shuffle=False))
    element = arrays_of(x, y, weight)
    form = Form([element])
    flow = BatchData(DataFromArrays(*leaves(element)), batch_size or BATCH_SIZE, remainder=True)
    return lambda: map(form.unpack, in_order(flow))


def split(x: Any, y: Any, sample_weight: Any, share: float) -> tuple[Any, Any]:
    """(x, y, sample_weight) to train on, and the last `share` of it for validation."""
    if isinstance(x, DataFlow | tf.data.Dataset | keras.utils.PyDataset | Iterator):
        raise ValueError(
            f"validation_split is for arrays, received a {type(x).__name__}; pass validation_data="
        )
    element = arrays_of(x, y, sample_weight)
    size = len(leaves(element)[0])
    first = math.floor(size * (1 - share))
    if not 0 < first < size:
        raise ValueError(f"expected validation_split to divide {size} samples, received {share}")

    def part(begin: int, end: int) -> Any:
        return keras.tree.map_structure(lambda a: None if a is None else a[begin:end], element)

    return part(0, first), part(first, size)


class Divided(DataFlow):
    """The batches of a flow, each divided into a part for every tower."""

    def __init__(self, ds: DataFlow, towers: int, size: int | None = None):
        self.ds, self.towers, self._size = ds, towers, size

    def inputs(self) -> Sequence[DataFlow]:
        return (self.ds,)

    def __len__(self) -> int:
        return (len(self.ds) if self._size is None else self._size) * self.towers

    def __iter__(self) -> Any:
        for batch in self.ds:
            if len(batch[0]) < self.towers:
                raise ValueError(
                    f"expected a sample for each of {self.towers} towers in every batch, received "
                    f"a batch of {len(batch[0])}: choose another batch_size, or leave samples out"
                )
            for part in zip(*[np.array_split(x, self.towers) for x in batch], strict=True):
                yield list(part)


class PyDatasetFlow(RNGDataFlow):
    """The batches of a `PyDataset`, with its epoch hooks; `workers` threads read ahead."""

    def __init__(self, data: Any, convert: Callable[[Any], Any], shuffle: bool):
        self.data, self.convert, self.shuffle = data, convert, shuffle

    def __len__(self) -> int:
        size = self.data.num_batches
        if size is None:
            raise TypeError("this PyDataset has no len(): pass steps_per_epoch")
        return int(size)

    def __iter__(self) -> Any:
        endless = self.data.num_batches is None
        order: Any = itertools.count() if endless else range(len(self))
        if self.shuffle and not endless:
            order = self.rng.permutation(len(self)).tolist()
        self.data.on_epoch_begin()
        with ThreadPoolExecutor(self.data.workers or 1, "PyDataset") as threads:
            coming: deque[Any] = deque()
            for number in order:
                coming.append(threads.submit(self.data.__getitem__, number))
                if len(coming) > self.data.workers:
                    yield self.convert(unpacked(coming.popleft().result()))
            while coming:
                yield self.convert(unpacked(coming.popleft().result()))
        self.data.on_epoch_end()


class OnePass(QueueInput):
    """A source that ends, and training with it, when its flow does."""

    _endless = False

    def _read(self, stream: Any, check: Any) -> None:
        try:
            super()._read(stream, check)
        except StopIteration as end:
            raise DataFlowTerminated from end


def by_model(datapoint: Any, model: Any) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight) of a datapoint of a flow: as in Keras, or flat, inputs first."""
    parts = [datapoint] if isinstance(datapoint, dict) else list(datapoint)
    inputs, outputs = (len(getattr(model, name, None) or [0]) for name in ("inputs", "outputs"))
    nested = any(isinstance(part, list | tuple | dict) for part in parts)
    if nested or inputs + outputs <= 2:
        return unpacked(tuple(parts))
    groups = parts[:inputs], parts[inputs : inputs + outputs], parts[inputs + outputs :]
    return tuple(group[0] if len(group) == 1 else group or None for group in groups)  # type: ignore[return-value]


def with_size(dataset: Any, steps: int | None) -> Any:
    """A dataset that says how long it is, after counting if needed; endless if `steps` are."""
    if int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        return dataset
    if steps is not None:
        return dataset.repeat()
    size = int(dataset.reduce(np.int64(0), lambda count, *_: count + 1))
    logger.info("the dataset has %d batches, counted in one pass: pass steps_per_epoch", size)
    return dataset.apply(tf.data.experimental.assert_cardinality(size))


def arrays_of(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Arrays in memory, as Keras would convert them: floats have the dtype `floatx`."""

    def array(value: Any) -> Any:
        if value is None or isinstance(value, tf.SparseTensor | tf.RaggedTensor):
            return value
        found = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        if found.dtype.kind == "O":
            found = np.array(found.tolist())  # strings
        return found.astype(keras.config.floatx()) if found.dtype.kind == "f" else found

    nested = keras.tree.is_nested
    if sample_weight is not None and nested(y) and not nested(sample_weight):
        sample_weight = keras.tree.map_structure(lambda _: sample_weight, y)
    element = keras.tree.map_structure(array, (x, y, sample_weight))
    if not leaves(element):
        raise ValueError("expected data to train on as x, received None")
    return element


def leaves(element: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(element) if leaf is not None]


def in_order(flow: DataFlow) -> Iterator[Any]:
    with flow.iterate(0) as datapoints:
        yield from datapoints


def only_x(y: Any, sample_weight: Any) -> None:
    if y is not None or sample_weight is not None:
        raise ValueError("expected y and sample_weight inside of x, which gives whole batches")

"""Data that workers read by themselves, instead of receiving it from the process that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.input_source.base import InputSource
from towerpack.input_source.buffer import Batches
from towerpack.input_source.signature import checked_tensors

# Operations that call Python, which only the process that made them can.
PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


class PerWorkerInput(InputSource):
    """A `tf.data.Dataset` on each worker of a `DistributedTrainerParameterServer`.

    `dataset_fn(worker, workers)` makes the dataset of one worker: `worker` is its number, a scalar
    tensor, and `workers` how many there are. It is traced once, and each worker runs what was
    traced. So it must consist of `tf.data` operations: files that the workers can read, or arrays,
    but no Python function and no flow. Elements are batches, as for `TFDatasetInput`, and repeat
    without end. No position is saved: a worker that starts again begins at the beginning, so
    shuffle, without a seed.

        def images(worker, workers):
            files = tf.data.Dataset.list_files("train-*.tfrecord", shuffle=False)
            records = tf.data.TFRecordDataset(files.shard(workers, worker))
            return records.map(parse).shuffle(10000).repeat().batch(64)

    Args:
        dataset_fn: makes the dataset of one worker.
        size: how many batches, of all workers together, make an epoch.
    """

    def __init__(self, dataset_fn: Callable[[Any, int], Any], size: int | None = None):
        if not callable(dataset_fn):
            raise TypeError(
                "expected a function of (worker, workers) that makes a dataset, received "
                f"{dataset_fn!r}; a dataset that was made here stays here"
            )
        if size is not None and size < 1:
            raise ValueError(f"expected a positive size or None, received {size}")
        self._function, self._size = dataset_fn, size

    def setup(self, signature: Sequence[Any]) -> None:
        super().setup(signature)
        traced = tf.function(lambda: self._dataset(tf.constant(0, tf.int64), 1), autograph=False)
        function = traced.get_concrete_function()
        self._element = function.structured_outputs.element_spec
        graph = function.graph.as_graph_def()
        inner = (node for each in graph.library.function for node in each.node_def)
        if any(node.op in PYTHON_OPERATIONS for node in (*graph.node, *inner)):
            raise ValueError(
                f"expected {self._label()} to use operations of tf.data alone, received one that "
                "calls Python (from_generator, tf.py_function or tf.numpy_function), which "
                "workers cannot; write the data to files, and read these"
            )
        checked_tensors(self._element, self.signature, self._label())

    def _dataset(self, worker: Any, workers: int) -> Any:
        dataset = self._function(worker, workers)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                f"expected {self._label()} to return a tf.data.Dataset, received {dataset!r}"
            )
        return dataset.repeat()

    def specs(self) -> list[Any]:
        found = checked_tensors(self._element, self.signature, self._label())
        pairs = zip(found, self.signature, strict=True)
        return [tf.TensorSpec(element.shape, spec.dtype, spec.name) for element, spec in pairs]

    def iterators(self, coordinator: Any, workers: int) -> Any:
        """An iterator on each worker, to be passed to what the coordinator schedules."""
        number = tf.distribute.coordinator.experimental_get_current_worker_index

        def make() -> Any:
            return self._dataset(tf.cast(number(), tf.int64), workers)

        function = tf.function(make, autograph=False)
        return iter(coordinator.create_per_worker_dataset(function))

    def batch(self, iterator: Any) -> list[Any]:
        """The tensors of the next batch, on the worker that has this iterator."""
        return checked_tensors(next(iterator), self.signature, self._label())

    def size(self) -> int | None:
        return self._size

    def batch_size(self) -> int | None:
        shape = tf.nest.flatten(self._element)[0].shape
        return (shape[0] if shape.rank else None) or super().batch_size()

    def _label(self) -> str:
        return f"PerWorkerInput({getattr(self._function, '__name__', 'function')})"

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        raise RuntimeError(
            "a PerWorkerInput is read by the workers of a DistributedTrainerParameterServer; for "
            "another trainer write TFDatasetInput(dataset_fn(0, 1))"
        )

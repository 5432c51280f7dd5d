"""A flow written to a file whose name says the format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format.arrayrecord import write_arrayrecord
from towerpack.dataflow.format.example_data import write_examples
from towerpack.dataflow.format.example_features import components
from towerpack.dataflow.format.parquet import write_parquet
from towerpack.dataflow.format.tar import write_tar
from towerpack.dataflow.serialize.hdf5_serializer import HDF5Serializer
from towerpack.dataflow.serialize.lmdb_serializer import LMDBSerializer
from towerpack.dataflow.serialize.numpy_serializer import NumpySerializer
from towerpack.dataflow.serialize.tfrecord_serializer import TFRecordSerializer


def _save_hdf5(flow: DataFlow, path: Path) -> None:
    first = next(iter(flow), None)
    if first is None:
        raise ValueError("the flow is empty")
    named = components(first)
    HDF5Serializer.save(flow, path, list(named))


Writer = Callable[[DataFlow, Path], Any]
WRITERS: dict[str, Writer] = {
    ".lmdb": LMDBSerializer.save,
    ".tfrecord": TFRecordSerializer.save,
    ".tfrecords": TFRecordSerializer.save,
    ".npz": NumpySerializer.save,
    ".h5": _save_hdf5,
    ".hdf5": _save_hdf5,
    ".parquet": write_parquet,
    ".arrayrecord": write_arrayrecord,
    ".tar": write_tar,
}


def save_stored(flow: DataFlow, path: str | Path, examples: bool = False) -> None:
    """Writes one pass of a flow; the ending of `path` says the format.

    `.lmdb`, `.tfrecord`, `.npz` and `.arrayrecord` hold any datapoint, exactly; `.h5` and
    `.parquet` those of one shape; `.tar` dicts by ending. With `examples`, a `.tfrecord` holds
    `tf.train.Example` records, which TensorFlow parses.
    """
    path = Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"expected a path ending in one of {sorted(WRITERS)}, received {path}")
    if examples:
        if not path.suffix.lower().startswith(".tfrecord"):
            raise ValueError(f"only a .tfrecord file holds examples, received {path}")
        write_examples(flow, path)
    else:
        writer(flow, path)

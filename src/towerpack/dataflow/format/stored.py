"""All formats in one table: recognize what a path holds and read it, or write a flow by its ending.

A new format defines a `Format` in the file of its reader, and is registered in `FORMATS`.
"""

from __future__ import annotations

from pathlib import Path

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format import (
    arrayrecord,
    caffe,
    example,
    hdf5,
    numpy_files,
    parquet,
    tar,
    text,
)
from towerpack.dataflow.format.caffe import open_lmdb
from towerpack.dataflow.format.example import write_examples
from towerpack.dataflow.format.numpy_files import NumpyColumns, NumpyFiles
from towerpack.dataflow.format.records import OnError, Stored
from towerpack.dataflow.format.tfrecord import TFRecordSerializer

HEAD = 512  # bytes: enough to recognize every format
FORMATS = (
    caffe.LMDB,
    example.TFRECORD,
    hdf5.FORMAT,
    numpy_files.NPZ,
    numpy_files.NPY,
    parquet.FORMAT,
    tar.FORMAT,
    arrayrecord.FORMAT,
    text.CSV,
)


def open_stored(path: str | Path, on_error: OnError = "raise") -> Stored:
    """Reads the datapoints stored at a path in any known format; ValueError for other files."""
    path = Path(path).expanduser()
    if path.is_dir():
        return _open_directory(path, on_error)
    with open(path, "rb") as file:
        head = file.read(HEAD)
    for format_ in FORMATS:
        if format_.is_head is not None and format_.is_head(head):
            return format_.open(path, on_error)
    for format_ in FORMATS:
        if path.suffix.lower() in format_.endings:
            return format_.open(path, on_error)
    names = [f.name + (f" ({', '.join(f.endings)})" if f.endings else "") for f in FORMATS]
    raise ValueError(
        f"{path} has an unknown format: expected {', '.join(names[:-1])} or {names[-1]}, received "
        f"a file that begins with {head[:8].hex(' ')}"
    )


def save_stored(flow: DataFlow, path: str | Path, examples: bool = False) -> None:
    """Writes one epoch of a flow in the format of `path`'s ending.

    `.lmdb`, `.tfrecord`, `.npz` and `.arrayrecord` hold any datapoint, exactly; `.h5` and
    `.parquet` those of one shape; `.tar` dicts by ending. With `examples`, a `.tfrecord` holds
    `tf.train.Example` records, which TensorFlow parses.
    """
    path = Path(path)
    writers = {ending: writer for f in FORMATS for ending, writer in f.writers.items()}
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"expected a path ending in one of {sorted(writers)}, received {path}")
    if examples:
        if writer is not TFRecordSerializer.save:
            raise ValueError(f"only a .tfrecord file holds examples, received {path}")
        writer = write_examples
    writer(flow, path)


def _open_directory(path: Path, on_error: OnError) -> Stored:
    if (path / "data.mdb").is_file():
        return open_lmdb(path, on_error)
    if any(path.glob("*.npz")):
        return Stored("npz files", NumpyFiles(path, on_error=on_error))
    if any(path.glob("*.npy")):
        return Stored("npy columns", NumpyColumns(path))
    raise ValueError(f"{path} has neither data.mdb nor .npz or .npy files")

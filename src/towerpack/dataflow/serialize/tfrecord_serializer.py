"""Flows stored in TFRecord files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from towerpack.core import codec
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow, as_flow
from towerpack.dataflow.format.file_list import Paths
from towerpack.dataflow.format.record_source import OnError
from towerpack.dataflow.format.stored_record import decode_record
from towerpack.dataflow.format.tfrecord_data import TFRecordData
from towerpack.dataflow.format.tfrecord_file import write_tfrecord


class TFRecordSerializer:
    """A flow's datapoints in a TFRecord file, in towerpack's codec.

    For `tf.train.Example` records, which TensorFlow parses, see `write_examples`.
    """

    @staticmethod
    def save(df: DataFlow | Iterable[Any], path: str | os.PathLike[str]) -> None:
        """Writes one pass of the flow, and an index beside the file; atomic."""
        with write_tfrecord(os.fspath(path)) as writer:
            for i, datapoint in enumerate(track(as_flow(df), description=f"writing {path}")):
                try:
                    writer.write(codec.encode(datapoint))
                except codec.EncodeError as error:
                    error.add_note(f"in datapoint {i}")
                    raise

    @staticmethod
    def load(
        path: Paths,
        size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> TFRecordData:
        """The stored datapoints as a flow with random access.

        `size` is not needed; if given, it is compared.
        """
        return TFRecordData(path, shuffle, decode_record, size=size, seed=seed, on_error=on_error)

"""TFRecord files of `tf.train.Example` as a source, and written from a flow."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow, as_flow
from towerpack.dataflow.format import proto
from towerpack.dataflow.format.example_features import (
    Features,
    components,
    decode_example,
    encode_example,
    infer_features,
)
from towerpack.dataflow.format.file_list import Paths, shard_paths
from towerpack.dataflow.format.record_source import OnError
from towerpack.dataflow.format.tfrecord_data import TFRecordData
from towerpack.dataflow.format.tfrecord_file import write_tfrecord


class ExampleData(TFRecordData):
    """`tf.train.Example` records as dicts, as the `features` say; see `TFRecordData` for the rest.

    It reads what `tf.data` wrote; `tf.io.parse_single_example` reads what `write_examples` wrote.
    """

    def __init__(
        self,
        paths: Paths,
        features: Features,
        shuffle: bool = False,
        *,
        size: int | None = None,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        proto.example_class()  # without protobuf, the error comes here
        self.features = dict(features)
        decoder = functools.partial(_decode, self.features)
        super().__init__(paths, shuffle, decoder, size=size, seed=seed, on_error=on_error)


def _decode(features: Features, record: Any, name: str) -> Any:
    return decode_example(record, features, name)


def write_examples(
    ds: DataFlow | Iterable[Any],
    path: str | os.PathLike[str],
    features: Features | None = None,
    *,
    shards: int = 1,
    compression: str | None = None,
) -> list[Path]:
    """Writes a flow's datapoints as `tf.train.Example` records; gives the files.

    A datapoint is a dict, or a list whose components get the names '0', '1', ... Without
    `features`, the first datapoint says what they are. With several `shards`, datapoint i goes to
    shard i modulo their number. Each file appears under its name when it is whole.
    """
    paths = shard_paths(path, shards)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(write_tfrecord(p, compression)) for p in paths]
        for i, datapoint in enumerate(track(as_flow(ds), description=f"writing {path}")):
            named = components(datapoint)
            if features is None:
                features = infer_features(datapoint)
            try:
                writers[i % shards].write(encode_example(named, features))
            except ValueError as error:
                error.add_note(f"in datapoint {i}")
                raise
    return paths

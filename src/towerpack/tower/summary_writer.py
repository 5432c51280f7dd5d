"""Summaries that a tower writes by `tf.summary` and `tf.compat.v1.summary`.

Both need a default writer while the tower is traced. Most steps have none, so that summaries cost
nothing. A step whose summaries are requested has one. A `Probe` finds out whether the tower writes
any: it traces the tower with a temporary writer.
"""

from __future__ import annotations

import contextlib
import re
import struct
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.tower.context import Summary

OTHER_TOWER = re.compile(r"tower\d+/")  # names of the main tower have no prefix


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """While open, summaries are not written, and no warning is printed about that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Cannot activate TF2 compatibility support")
        yield


class SummaryWriter:
    """Collects the summaries of `tf.summary` for the monitors.

    TensorFlow writes them only to files, so they are read from a temporary directory.
    """

    def __init__(self) -> None:
        self._writer: Any = None
        self._directory: Any = None
        self._position = 0

    def recording(self, step: Any) -> contextlib.AbstractContextManager[Any]:
        """While open, summaries are collected."""
        if self._writer is None:
            self._directory = tempfile.TemporaryDirectory(prefix="towerpack-summaries-")
            self._writer = tf.summary.create_file_writer(self._directory.name)
        return self._writer.as_default(step)

    def collected(self) -> list[Summary]:
        """The summaries that the main tower has written since the last call.

        Kinds are 'scalar', 'image', 'text', and 'summary' for all others, such as histograms, whose
        values are serialized messages.
        """
        if self._writer is None:
            return []
        self._writer.flush()
        content = b""
        for path in Path(self._directory.name).iterdir():  # there is one file after the first write
            with open(path, "rb") as file:
                file.seek(self._position)
                content = file.read()
        self._position += len(content)
        values = [value for event in _events(content) for value in event.summary.value]
        return [_summary(value) for value in values if not OTHER_TOWER.match(value.tag)]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._directory.cleanup()
            self._position = 0


def _events(content: bytes) -> Iterator[Any]:
    """The events in the records of a file: a length, its checksum, the content, its checksum."""
    start = 0
    while start < len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        yield v1.Event.FromString(content[start + 12 : start + 12 + length])
        start += length + 16


def _summary(value: Any) -> Summary:
    kind = value.metadata.plugin_data.plugin_name
    if value.HasField("simple_value"):
        return Summary("scalar", value.tag, value.simple_value)
    if kind in ("scalars", "images", "text") and value.HasField("tensor"):
        array = tf.make_ndarray(value.tensor)
        if kind == "scalars":
            return Summary("scalar", value.tag, float(array))
        if kind == "text":
            lines = [text.decode(errors="replace") for text in array.reshape(-1)]
            return Summary("text", value.tag, "\n\n".join(lines))
        images = [tf.io.decode_png(png).numpy() for png in array[2:]]  # after width and height
        return Summary("image", value.tag, np.stack(images))
    return Summary("summary", value.tag, v1.Summary(value=[value]).SerializeToString())


class Probe:
    """Finds out whether the code that is traced under it writes summaries."""

    def __init__(self) -> None:
        self.found = False

    @contextlib.contextmanager
    def recording(self, step: Any) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as directory:
            with tf.init_scope():
                writer = tf.summary.create_file_writer(directory)
            with writer.as_default(step):
                yield
                operations = v1.get_default_graph().get_operations()
                self.found = any(
                    op.type.startswith("Write") and "Summary" in op.type for op in operations
                )
            with tf.init_scope():
                writer.close()

"""TensorBoard's event files, written without TensorFlow.

An event file is a sequence of TFRecords, each holding one `Event` message.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import zlib
from pathlib import Path
from typing import IO, Any

import google_crc32c
import numpy as np

from towerpack.core.optional import require
from towerpack.monitor.base import MonitorBase, RunInfo

HISTOGRAM_BINS = 30  # as many as TensorBoard draws
_MASK_DELTA = 0xA282EAD8


class TFEventWriter(MonitorBase):
    """Writes scalars and images to an event file in the run's directory, for TensorBoard.

    Without a directory it does nothing. What was written is on its way to the disk after every
    epoch.
    """

    def __init__(self, logdir: str | Path | None = None):
        self.logdir = logdir
        self._file: IO[bytes] | None = None

    def open(self, run: RunInfo) -> None:
        directory = self.logdir or run.directory
        if directory is None:
            return
        Path(directory).mkdir(parents=True, exist_ok=True)
        # Nanoseconds tell apart two writers that one process opens in the same second.
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        host = f"{socket.gethostname()}.{os.getpid()}.{nanoseconds}"
        name = f"events.out.tfevents.{seconds}.{host}"
        self._file = Path(directory, name).open("wb")  # noqa: SIM115 (closed in `close`)
        self._write(file_version="brain.Event:2")
        self._file.flush()

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        self._write_summary(step, tag=name, simple_value=value)

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        summary = require("tensorboard.compat.proto.summary_pb2", extra="tf")
        for number, image in enumerate(images):
            height, width, channels = image.shape
            picture = summary.Summary.Image(
                height=height, width=width, colorspace=channels, encoded_image_string=_png(image)
            )
            tag = name if len(images) == 1 else f"{name}/{number}"
            self._write_summary(step, tag=tag, image=picture)

    def process_histogram(self, name: str, values: np.ndarray, step: int, epoch: int) -> None:
        if values.size:
            self._write_summary(step, tag=name, histo=_histogram(values))

    def process_summary(self, serialized: bytes, step: int, epoch: int) -> None:
        summary = require("tensorboard.compat.proto.summary_pb2", extra="tf")
        self._write(step=step, summary=summary.Summary.FromString(serialized))

    def flush(self, step: int, epoch: int) -> None:
        if self._file:
            self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _write_summary(self, step: int, **value: Any) -> None:
        summary = require("tensorboard.compat.proto.summary_pb2", extra="tf")
        self._write(step=step, summary=summary.Summary(value=[summary.Summary.Value(**value)]))

    def _write(self, **content: Any) -> None:
        if self._file:
            event = require("tensorboard.compat.proto.event_pb2", extra="tf")
            record = event.Event(wall_time=time.time(), **content).SerializeToString()
            self._file.write(_framed(record))


def _histogram(values: np.ndarray) -> Any:
    summary = require("tensorboard.compat.proto.summary_pb2", extra="tf")
    finite = values[np.isfinite(values)]
    if not finite.size:
        finite = np.zeros(1)
    counts, edges = np.histogram(finite, bins=HISTOGRAM_BINS)
    return summary.HistogramProto(
        min=finite.min(),
        max=finite.max(),
        num=finite.size,
        sum=finite.sum(),
        sum_squares=np.square(finite).sum(),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return b"".join([length, _masked_crc(length), record, _masked_crc(record)])


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


def _png(image: np.ndarray) -> bytes:
    """A PNG of a uint8 HWC picture; zlib does all the work there is."""
    height, width, channels = image.shape
    colour_type = {1: 0, 3: 2, 4: 6}[channels]
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with filter 0
    rows[:, 1:] = image.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(rows.tobytes())),
            chunk(b"IEND", b""),
        ]
    )

"""TensorBoard's event files, written without TensorFlow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.monitor.base import MonitorBase, RunInfo
from towerpack.monitor.files import FILE_MARK, GrowingFile, encode_png, event_file_name, framed

BINS = 30  # the number that TensorBoard draws
PART = 1 << 16  # numbers that are counted at once: a whole copy in double precision may be large
HPARAMS_END_TAG = "_hparams_/session_end_info"


class TFEventWriter(MonitorBase):
    """Writes everything it receives to an event file in the run's directory, for TensorBoard.

    That is scalars, pictures, histograms, text, the graph and hyperparameters. Without a directory
    it does nothing. Events reach the file after every epoch, when `max_queue` of them are waiting,
    and with the first event that comes `flush_secs` after the last write. A resumed run first makes
    TensorBoard discard the steps that will be logged again, so that a curve has every step once.
    With `split_files`, each epoch has its own file, which never changes after the epoch.

    Needs tensorboard (extra `tf`).
    """

    def __init__(
        self,
        logdir: str | Path | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        split_files: bool = False,
    ):
        if max_queue < 1:
            raise ValueError(f"expected max_queue of at least 1, received {max_queue}")
        self.logdir, self.max_queue, self.flush_secs = logdir, max_queue, flush_secs
        self.split_files = split_files
        self._file: GrowingFile | None = None
        self._lock = threading.Lock()  # a thread writes the graph
        self._graph_thread: threading.Thread | None = None
        self._graph_failure: BaseException | None = None
        self._has_hyperparameters = False

    @property
    def needs_directory(self) -> bool:  # type: ignore[override]
        return self.logdir is None

    def open(self, run: RunInfo) -> None:
        self._directory = Path(self.logdir or run.required_directory())
        self._open_file()
        if run.continues and run.starting_step:
            log = _events().SessionLog(status=_events().SessionLog.START)
            self._write(step=run.starting_step + 1, session_log=log)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._flush()

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        self._write_summary(step, tag=name, simple_value=value)

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        for number, image in enumerate(images):
            height, width, channels = image.shape
            picture = _summaries().Summary.Image(
                height=height,
                width=width,
                colorspace=channels,
                encoded_image_string=encode_png(image),
            )
            tag = name if len(images) == 1 else f"{name}/{number}"
            self._write_summary(step, tag=tag, image=picture)

    def process_histogram(self, name: str, values: np.ndarray, step: int, epoch: int) -> None:
        if values.size:
            self._write_summary(step, tag=name, histo=_histogram(values))

    def process_text(self, name: str, text: str, step: int, epoch: int) -> None:
        metadata = require("tensorboard.plugins.text.metadata", extra="tf")
        tensors = require("tensorboard.compat.proto.tensor_pb2", extra="tf")
        types = require("tensorboard.compat.proto.types_pb2", extra="tf")
        self._write_summary(
            step,
            tag=name,
            metadata=metadata.create_summary_metadata(display_name=name, description=""),
            tensor=tensors.TensorProto(dtype=types.DT_STRING, string_val=[text.encode()]),
        )

    def process_hyperparameters(self, values: Mapping[str, Any]) -> None:
        hparams = require("tensorboard.plugins.hparams.summary_v2", extra="tf")
        self._has_hyperparameters = True
        group = str(self._directory)  # the sessions before and after a restart are one trial
        self._write(step=0, summary=hparams.hparams_pb(dict(values), trial_id=group))

    def process_graph(self, graph: Callable[[], bytes]) -> None:

        def write() -> None:
            try:
                self._write(graph_def=graph())
            except BaseException as error:  # noqa: BLE001 (raised by the next flush)
                self._graph_failure = error

        self._join_graph()
        self._graph_thread = threading.Thread(target=write, name="TFEventWriter graph")
        self._graph_thread.start()

    def process_summary(self, serialized: bytes, step: int, epoch: int) -> None:
        self._write(step=step, summary=_summaries().Summary.FromString(serialized))

    def process_event(self, serialized: bytes, step: int, epoch: int) -> None:
        self._write_record(serialized)

    def persist(self) -> None:
        self._flush()

    def flush(self, step: int, epoch: int) -> None:
        self._join_graph()
        self._flush()
        if self._file and (self.split_files or self._has_newer_neighbour()):
            self._open_file()
            self._flush()

    def end(self, error: BaseException | None) -> None:
        if self._has_hyperparameters:
            self._write(summary=_hyperparameters_end(failed=error is not None))

    def close(self) -> None:
        try:
            self._join_graph()
        finally:
            try:
                self._flush()
            finally:
                self._file = None

    def _has_newer_neighbour(self) -> bool:
        """Whether another writer has created a newer file in the directory.

        At the end of a file, TensorBoard's loader continues with the next one and never returns to
        this one, so it would not show what is added here.
        """
        own = self._file.path.name if self._file else ""
        return any(path.name > own for path in self._directory.glob(f"{FILE_MARK}*"))

    def _open_file(self) -> None:
        self._file = GrowingFile(self._directory / event_file_name())
        self._pending, self._flushed = 0, time.monotonic()
        self._write(file_version="brain.Event:2")

    def _write_summary(self, step: int, **value: Any) -> None:
        message = _summaries().Summary
        self._write(step=step, summary=message(value=[message.Value(**value)]))

    def _write(self, **content: Any) -> None:
        event = _events().Event(wall_time=time.time(), **content)
        self._write_record(event.SerializeToString())

    def _write_record(self, record: bytes) -> None:
        with self._lock:
            if not self._file:
                return
            self._file.append(framed(record))
            self._pending += 1
            late = time.monotonic() - self._flushed > self.flush_secs
        if late or self._pending >= self.max_queue:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            if self._file:
                self._pending, self._flushed = 0, time.monotonic()
                self._file.write()

    def _join_graph(self) -> None:
        if self._graph_thread is not None:
            self._graph_thread.join()
            self._graph_thread = None
        failure, self._graph_failure = self._graph_failure, None
        if failure is not None:
            logger.error("the graph for TensorBoard could not be written")
            raise failure


def _events() -> Any:
    return require("tensorboard.compat.proto.event_pb2", extra="tf")


def _summaries() -> Any:
    return require("tensorboard.compat.proto.summary_pb2", extra="tf")


def _histogram(values: np.ndarray) -> Any:
    found = distribution(values)
    return _summaries().HistogramProto(
        min=found.least,
        max=found.greatest,
        num=found.count,
        sum=found.total,
        sum_squares=found.total_of_squares,
        bucket_limit=found.edges[1:].tolist(),
        bucket=found.counts.tolist(),
    )


def _hyperparameters_end(failed: bool) -> Any:
    """The message that ends a session of the hparams plugin.

    TensorBoard's own function for it imports TensorFlow, which this room must not.
    """
    api = require("tensorboard.plugins.hparams.api_pb2", extra="tf")
    plugin = require("tensorboard.plugins.hparams.plugin_data_pb2", extra="tf")
    metadata = require("tensorboard.plugins.hparams.metadata", extra="tf")
    status = api.Status.Value("STATUS_FAILURE" if failed else "STATUS_SUCCESS")
    data = plugin.HParamsPluginData(
        session_end_info=plugin.SessionEndInfo(status=status, end_time_secs=time.time())
    )
    message = _summaries().Summary
    value = message.Value(
        tag=HPARAMS_END_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return message(value=[value])


@dataclass(frozen=True)
class Distribution:
    """Counts of numbers in bins of equal width between minimum and maximum, and their sums."""

    least: float
    greatest: float
    count: int
    total: float
    total_of_squares: float
    edges: np.ndarray
    counts: np.ndarray


def distribution(values: np.ndarray, bins: int = BINS) -> Distribution:
    """The distribution of all finite `values` in a flat array; that of a single zero if empty.

    Sums are in double precision. The memory it needs does not depend on the size of `values`.

    >>> found = distribution(np.float32([1, 2, 2, np.nan]), bins=2)
    >>> found.count, found.least, found.greatest, found.total, found.counts.tolist()
    (3, 1.0, 2.0, 5.0, [1, 2])
    """
    extremes = [limit for part in _finite_parts(values) for limit in (part.min(), part.max())]
    if not extremes:
        return distribution(np.zeros(1), bins)
    least, greatest = float(min(extremes)), float(max(extremes))
    # Between numbers that are almost equal there is no space for that many edges.
    space = 4 * bins * float(np.spacing(max(abs(least), abs(greatest))))
    margin = 0.0 if greatest - least > space else max(0.5, space)
    limits = least - margin, greatest + margin
    counts = np.zeros(bins, np.int64)
    count, total, total_of_squares = 0, 0.0, 0.0
    for part in _finite_parts(values):
        part = part.astype(np.float64)
        counts += np.histogram(part, bins, limits)[0]
        count += part.size
        total += float(part.sum())
        with np.errstate(over="ignore"):  # the sum is infinite then
            total_of_squares += float(part.dot(part))
    edges = np.linspace(*limits, bins + 1)
    return Distribution(least, greatest, count, total, total_of_squares, edges, counts)


def _finite_parts(values: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, values.size, PART):
        part = values[start : start + PART]
        part = part[np.isfinite(part)]
        if part.size:
            yield part

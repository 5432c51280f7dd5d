"""Collects single datapoints of many callers into batches for a few predictors."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from towerpack.predict.predictor import PredictorBase

JOIN_SECONDS = 60.0  # how long `close` waits for the batches in progress


class _Task(NamedTuple):
    datapoint: list[np.ndarray]
    future: Future[list[np.ndarray]]


class MultiThreadAsyncPredictor:
    """Predicts datapoints of several threads in common batches, for example for actors.

    `put_task(datapoint)` returns a `Future` of the outputs for that datapoint. One thread for each
    predictor takes the queued datapoints, up to `batch_size`, and waits up to `latency` seconds for
    more. With 0, a single datapoint is predicted at once. Datapoints of different shapes go into
    different batches. Every task is answered exactly once: an error of the predictor is set on the
    future of each datapoint in its batch, and on no other. `close` answers the queued tasks first.

    >>> with MultiThreadAsyncPredictor([lambda x: [x * 2]], batch_size=8) as predictor:
    ...     [int(future.result()[0]) for future in map(predictor.put_task, ([1], [2]))]
    [2, 4]
    """

    def __init__(
        self,
        predictors: Sequence[Callable[..., list[np.ndarray]]],
        batch_size: int = 5,
        latency: float = 0.0,
    ):
        if not predictors:
            raise ValueError("expected at least one predictor, received an empty list")
        if batch_size < 1 or latency < 0:
            raise ValueError(
                f"expected batch_size >= 1 and latency >= 0, received {batch_size} and {latency}"
            )
        for predictor in predictors:
            if isinstance(predictor, PredictorBase) and predictor.return_input:
                raise ValueError("expected predictors made with return_input=False")
        self.batch_size, self.latency = batch_size, latency
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._started = self._closed = False
        self._threads = [
            threading.Thread(
                target=self._serve, args=[predictor], name=f"predictor {i}", daemon=True
            )
            for i, predictor in enumerate(predictors)
        ]

    def start(self) -> None:
        """Starts the threads, if the first task has not done so."""
        with self._lock:
            if not self._started:
                self._started = True
                for thread in self._threads:
                    thread.start()

    def put_task(
        self, dp: Sequence[Any], callback: Callable[[Future[list[np.ndarray]]], Any] | None = None
    ) -> Future[list[np.ndarray]]:
        """Queues one datapoint, without a batch dimension; `callback` is called with its future."""
        future: Future[list[np.ndarray]] = Future()
        if callback is not None:
            future.add_done_callback(callback)
        task = _Task([np.asarray(x) for x in dp], future)
        with self._lock:  # so that no task is queued after `close`
            if self._closed:
                raise RuntimeError("the predictor has been closed and accepts no more tasks")
            self.start()
            self._tasks.put(task)
        return future

    def close(self) -> None:
        """Answers the queued tasks and ends the threads; may be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._tasks.put(None)
        if self._started:
            for thread in self._threads:
                if thread is not threading.current_thread():  # closed by a callback
                    thread.join(JOIN_SECONDS)

    def __enter__(self) -> MultiThreadAsyncPredictor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _serve(self, predictor: Callable[..., list[np.ndarray]]) -> None:
        while batch := self._next_batch():
            wanted = [task for task in batch if task.future.set_running_or_notify_cancel()]
            for group in _by_shape(wanted):
                _answer(predictor, group)

    def _next_batch(self) -> list[_Task]:
        """Waits for a task and returns it with those queued after it; an empty list at the end."""
        batch: list[_Task] = []
        deadline = 0.0
        while len(batch) < self.batch_size:
            try:
                if not batch:
                    task = self._tasks.get()
                    deadline = time.monotonic() + self.latency
                else:
                    left = deadline - time.monotonic()
                    task = self._tasks.get(timeout=left) if left > 0 else self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is None:
                self._tasks.put(None)  # for the other threads, and for the next call in this one
                break
            batch.append(task)
        return batch


def _by_shape(tasks: list[_Task]) -> list[list[_Task]]:
    groups: dict[Any, list[_Task]] = {}
    for task in tasks:
        key = tuple((x.shape, x.dtype.str) for x in task.datapoint)
        groups.setdefault(key, []).append(task)
    return list(groups.values())


def _answer(predictor: Callable[..., list[np.ndarray]], tasks: list[_Task]) -> None:
    try:
        columns = zip(*(task.datapoint for task in tasks), strict=True)
        outputs = [np.asarray(output) for output in predictor(*map(np.stack, columns))]
        for output in outputs:
            if output.shape[:1] != (len(tasks),):
                raise ValueError(
                    f"expected outputs with one row for each of {len(tasks)} datapoints, received "
                    f"an output of shape {output.shape}"
                )
    except BaseException as error:  # noqa: BLE001 (raised where the result is asked for)
        for task in tasks:
            task.future.set_exception(error)
        return
    for row, task in enumerate(tasks):
        task.future.set_result([output[row] for output in outputs])

"""Predicting all datapoints of a flow."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.core.progress import Progress
from towerpack.dataflow import as_flow
from towerpack.predict.config import PredictConfig
from towerpack.predict.predictor import OfflinePredictor, inputs_of
from towerpack.predict.process import (
    NO_GPU,
    PackedPredictor,
    PredictError,
    PredictorProcess,
    ProcessDied,
)

AHEAD = 2  # datapoints submitted per process: one in work, one waiting
ATTEMPTS = 2  # a process may die by accident; a datapoint that kills two of them is the cause


class DatasetPredictorBase:
    """`get_result()` iterates over the predictions for a flow; `get_all_result()` lists them."""

    def __init__(self, config: PredictConfig, dataset: Any):
        self.config, self.dataset = config, as_flow(dataset)

    def get_result(self) -> Iterator[Any]:
        """Yields the outputs for each datapoint, with a progress bar."""
        raise NotImplementedError

    def get_all_result(self) -> list[Any]:
        return list(self.get_result())

    def _progress(self) -> Progress:
        try:
            total = len(self.dataset)
        except (TypeError, NotImplementedError):
            total = None
        return Progress(total, "predicting", "dp")

    def _result(self, inputs: list[Any], outputs: Any) -> Any:
        return (inputs, outputs) if self.config.return_input else outputs


class SimpleDatasetPredictor(DatasetPredictorBase):
    """Predicts every datapoint of a flow once, in order, in this process.

    The model is loaded once, for any number of iterations.
    """

    def __init__(self, config: PredictConfig, dataset: Any):
        super().__init__(config, dataset)
        self.predictor = OfflinePredictor(config)

    def get_result(self) -> Iterator[Any]:
        with self._progress() as bar:
            for datapoint in self.dataset:
                yield self.predictor(*inputs_of(datapoint, self.config.input_names))
                bar.update()


class MultiProcessDatasetPredictor(DatasetPredictorBase):
    """Predicts every datapoint of a flow once, with `nr_proc` processes.

    The results come in the order of the flow, or with `ordered=False` as soon as they are ready.
    Each process loads TensorFlow and the model, on a GPU of its own if there are GPUs and `use_gpu`
    is set; the processes share the cores of the CPU. The flow is read in this process, a few
    datapoints ahead.

    A process that dies is replaced, and its datapoint is predicted again; if that process dies as
    well, `PredictError` describes how. No process remains when the iteration ends, even by an
    error.
    """

    def __init__(
        self,
        config: PredictConfig,
        dataset: Any,
        nr_proc: int,
        use_gpu: bool = True,
        ordered: bool = True,
    ):
        super().__init__(config, dataset)
        if nr_proc < 1:
            raise ValueError(f"expected nr_proc >= 1, received {nr_proc}")
        self.nr_proc, self.use_gpu, self.ordered = nr_proc, use_gpu, ordered

    def get_result(self) -> Iterator[Any]:
        gpus = len(tf.config.list_physical_devices("GPU")) if self.use_gpu else 0
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(contextlib.closing(_Pool(self.config, self.nr_proc, gpus)))
            datapoints = stack.enter_context(contextlib.closing(iter(self.dataset)))
            bar = stack.enter_context(self._progress())
            for inputs, outputs in self._predicted(pool, datapoints):
                yield self._result(inputs, outputs)
                bar.update()

    def _predicted(self, pool: _Pool, datapoints: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        pending: deque[Future[tuple[Any, Any]]] = deque()
        for index, datapoint in enumerate(datapoints):
            pending.append(pool.submit(index, inputs_of(datapoint, self.config.input_names)))
            if len(pending) >= AHEAD * self.nr_proc:
                yield self._next(pending).result()
        while pending:
            yield self._next(pending).result()

    def _next(self, pending: deque[Future[tuple[Any, Any]]]) -> Future[tuple[Any, Any]]:
        if self.ordered:
            return pending.popleft()
        done = next(iter(wait(pending, return_when=FIRST_COMPLETED).done))
        pending.remove(done)
        return done


class _Pool:
    """Processes, each lent to one thread for one datapoint at a time."""

    def __init__(self, config: PredictConfig, count: int, gpus: int):
        self._gpus = [i % gpus if gpus else NO_GPU for i in range(count)]
        self._packed = PackedPredictor(config, threads=max(1, (os.cpu_count() or 1) // count))
        self._closing, self._lock = False, threading.Lock()
        self._processes = [PredictorProcess(self._packed, gpu) for gpu in self._gpus]
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(count):
            self._idle.put(place)
        self._threads = ThreadPoolExecutor(count, "predictor process")

    def submit(self, index: int, inputs: list[Any]) -> Future[tuple[Any, Any]]:
        return self._threads.submit(self._predict, index, inputs)

    def _predict(self, index: int, inputs: list[Any]) -> tuple[Any, Any]:
        place = self._idle.get()
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return inputs, self._processes[place](*inputs)
                except ProcessDied as death:
                    self._replace(place, death, last=attempt == ATTEMPTS)
                except PredictError as error:
                    error.add_note(f"while predicting datapoint {index}")
                    raise
            raise RuntimeError("unreachable: the last attempt raises")
        finally:
            self._idle.put(place)

    def _replace(self, place: int, death: ProcessDied, last: bool) -> None:
        with self._lock:
            if self._closing or last:
                raise death
            logger.warning("%s; a new process replaces it", death)
            self._processes[place].close()
            self._processes[place] = PredictorProcess(self._packed, self._gpus[place])

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # this ends a call in progress, and with it its thread
        self._threads.shutdown(wait=True)
        for process in self._processes:
            process.close()
        self._packed.close()

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
from towerpack.core.prefetch import PREDICTIONS_PER_PROCESS
from towerpack.core.progress import Progress
from towerpack.dataflow import WorkerDied, as_flow
from towerpack.dataflow.workers import payload
from towerpack.predict.config import PredictConfig
from towerpack.predict.predictor import OfflinePredictor, inputs_of
from towerpack.predict.process import NO_GPU, PredictError, PredictorProcess


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
    is set. The processes share the cores of the CPU. The flow is read in this process, which
    prefetches a few datapoints.

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
        gpus = len(tf.config.get_visible_devices("GPU")) if self.use_gpu else 0
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(contextlib.closing(_Pool(self.config, self.nr_proc, gpus)))
            datapoints = stack.enter_context(contextlib.closing(iter(self.dataset)))
            bar = stack.enter_context(self._progress())
            for inputs, outputs in self._predicted(pool, datapoints):
                yield (inputs, outputs) if self.config.return_input else outputs
                bar.update()

    def _predicted(self, pool: _Pool, datapoints: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        pending: deque[Future[tuple[Any, Any]]] = deque()
        for index, datapoint in enumerate(datapoints):
            pending.append(pool.submit(index, inputs_of(datapoint, self.config.input_names)))
            if len(pending) >= PREDICTIONS_PER_PROCESS * self.nr_proc:
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
    """A pool of processes; a thread uses one of them for one datapoint at a time."""

    def __init__(self, config: PredictConfig, count: int, gpus: int):
        portable = config.with_weights(config.session_init if config.has_weights else None)
        self._packed = payload.pack(portable, "the PredictConfig")
        self._cores, self._gpus = max(1, (os.cpu_count() or 1) // count), gpus
        self._closing, self._lock = False, threading.Lock()
        self._processes = [self._start(place) for place in range(count)]
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(count):
            self._idle.put(place)
        self._threads = ThreadPoolExecutor(count, "predictor process")

    def submit(self, index: int, inputs: list[Any]) -> Future[tuple[Any, Any]]:
        return self._threads.submit(self._predict, index, inputs)

    def _start(self, place: int) -> PredictorProcess:
        gpu = place % self._gpus if self._gpus else NO_GPU
        return PredictorProcess(self._packed, place, self._cores, gpu)

    def _predict(self, index: int, inputs: list[Any]) -> tuple[Any, Any]:
        place = self._idle.get()
        try:
            return inputs, self._call(place, inputs)
        except (WorkerDied, PredictError) as error:
            failure = PredictError(str(error))
            failure.add_note(f"while predicting datapoint {index}")
            raise failure from error
        finally:
            self._idle.put(place)

    def _call(self, place: int, inputs: list[Any]) -> Any:
        try:
            return self._processes[place](*inputs)
        except WorkerDied as death:
            with self._lock:
                if self._closing:
                    raise
                logger.warning("%s; a new process replaces it", death)
                self._processes[place].close()
                self._processes[place] = self._start(place)
        # It may have died by accident; a datapoint that kills a second process is the cause.
        return self._processes[place](*inputs)

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # this ends a call in progress, and with it its thread
        self._threads.shutdown(wait=True)
        for process in self._processes:
            process.close()
        os.close(self._packed)

"""Running the tower over a validation set."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback
from towerpack.callbacks.ema import EMA
from towerpack.callbacks.inference import Inferencer
from towerpack.callbacks.inference_batches import batch_size, batches_of
from towerpack.core.progress import Progress
from towerpack.tower import TowerFunc, TracedTower

Run = Callable[[list[Any]], list[Any]]


class InferenceRunnerBase(Callback):
    """What inference runners have in common; a subclass says how batches are run (`_outputs`)."""

    def __init__(
        self,
        input: Any,
        infs: Inferencer | Sequence[Inferencer],
        tower_name: str = "InferenceTower",
        tower_func: TowerFunc | None = None,
        ema: EMA | None = None,
    ):
        self.batches = batches_of(input)
        self.infs = [infs] if isinstance(infs, Inferencer) else list(infs)
        for inferencer in self.infs:
            if not isinstance(inferencer, Inferencer):
                raise TypeError(f"expected inferencers, received {inferencer!r}")
        self.tower_name, self.tower_func, self.ema = tower_name, tower_func, ema

    def _setup_graph(self) -> None:
        self._fetches = [inferencer.get_fetches() for inferencer in self.infs]
        self._names = list(dict.fromkeys(name for names in self._fetches for name in names))
        self._tower_func = self.tower_func or self.trainer.tower_func
        self.batches.setup(self._tower_func.signature)
        self._build()

    def _build(self) -> None:
        raise NotImplementedError

    def _outputs(self, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """The values of the wanted tensors for each batch, in order."""
        raise NotImplementedError

    def _tower(self, name: str, device: str | None) -> Run:
        tower = TracedTower(self._tower_func, self.trainer.store, name)
        function = tower.function(None, self._names)

        def run(inputs: list[Any]) -> list[Any]:
            with tf.device(device):
                return [tensor.numpy() for tensor in function(*inputs)]

        return run

    def _trigger(self) -> None:
        for inferencer in self.infs:
            inferencer.trainer = self.trainer
            inferencer.before_inference()
        averages = self.ema.swapped() if self.ema is not None else contextlib.nullcontext()
        sizes: deque[int | None] = deque()  # of the batches that are being run, in their order
        done = 0
        with (
            averages,
            self.batches.one_pass() as batches,
            Progress(self.batches.size(), "validation", "batch") as bar,
        ):
            for outputs in self._outputs(self._measured(batches, sizes)):
                self._deliver(outputs, sizes.popleft())
                bar.update()
                done += 1
        if not done:
            raise ValueError(f"{self.batches.name} produced nothing in a whole pass; is it empty?")
        for inferencer in self.infs:
            for key, value in inferencer.after_inference().items():
                self.trainer.monitors.put_scalar(key, value)

    def _measured(
        self, batches: Iterator[list[Any]], sizes: deque[int | None]
    ) -> Iterator[list[Any]]:
        for batch in batches:
            sizes.append(batch_size(batch, self._tower_func.signature))
            yield batch

    def _deliver(self, outputs: list[Any], size: int | None) -> None:
        values = dict(zip(self._names, outputs, strict=True))
        for inferencer, names in zip(self.infs, self._fetches, strict=True):
            inferencer.batch_size = size
            inferencer.on_fetches([values[name] for name in names])

    def _after_train(self) -> None:
        self.batches.close()


class InferenceRunner(InferenceRunnerBase):
    """Runs one pass of a set through the tower under `is_training=False`, at each trigger.

    `input` is a flow or any input source. The variables are those in training, or their averages
    if an `EMA` is given. Every batch is used exactly once, in order, also a smaller last one. The
    scalars of the inferencers go to the monitors. `device` is the number of a GPU, -1 for the CPU.

    >>> from towerpack.dataflow import FakeData
    >>> flow = FakeData([[8, 4], [8]], size=3, dtype=["float32", "int32"])
    >>> from towerpack.callbacks import ScalarStats
    >>> runner = InferenceRunner(flow, ScalarStats("cost"))
    """

    def __init__(
        self,
        input: Any,
        infs: Inferencer | Sequence[Inferencer],
        tower_name: str = "InferenceTower",
        tower_func: TowerFunc | None = None,
        device: int = 0,
        ema: EMA | None = None,
    ):
        super().__init__(input, infs, tower_name, tower_func, ema)
        self.device = device

    def _build(self) -> None:
        (device,) = inference_devices([self.device])
        self._run = self._tower(self.tower_name, device)

    def _outputs(self, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        return (self._run(batch) for batch in batches)


class DataParallelInferenceRunner(InferenceRunnerBase):
    """The same with one tower on each of several devices, which take batches side by side.

    The results are those of one tower: every batch exactly once, delivered in order, whatever the
    number of batches and the size of the last. `gpus` is a number of GPUs or a list of theirs;
    where there is none, the CPUs that TensorFlow has stand in.
    """

    def __init__(
        self,
        input: Any,
        infs: Inferencer | Sequence[Inferencer],
        gpus: int | Sequence[int],
        tower_name: str = "InferenceTower",
        tower_func: TowerFunc | None = None,
        ema: EMA | None = None,
    ):
        super().__init__(input, infs, tower_name, tower_func, ema)
        self.gpus = list(range(gpus)) if isinstance(gpus, int) else list(gpus)
        if not self.gpus or min(self.gpus) < 0:
            raise ValueError(f"expected a number of GPUs or a list of them, received {gpus!r}")

    def _build(self) -> None:
        self._runs = [
            self._tower(f"{self.tower_name}{number}", device)
            for number, device in enumerate(inference_devices(self.gpus))
        ]

    def _outputs(self, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        with ThreadPoolExecutor(len(self._runs), "DataParallelInference") as threads:
            while group := list(islice(batches, len(self._runs))):
                runs = self._runs[: len(group)]
                yield from threads.map(lambda run, batch: run(batch), runs, group)


def inference_devices(numbers: Sequence[int]) -> list[str | None]:
    """The devices of these numbers; -1 is the CPU, None TensorFlow's own choice."""
    gpus = len(tf.config.list_logical_devices("GPU"))
    if gpus:
        if max(numbers) >= gpus:
            raise ValueError(f"expected GPUs of 0 to {gpus - 1}, received {list(numbers)}")
        return ["/cpu:0" if number < 0 else f"/gpu:{number}" for number in numbers]
    cpus = len(tf.config.list_logical_devices("CPU"))
    return [None if len(numbers) == 1 else f"/cpu:{max(number, 0) % cpus}" for number in numbers]

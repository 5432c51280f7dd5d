"""Running the tower over a validation set."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback, TrainerView
from towerpack.callbacks.batches import batches_of
from towerpack.callbacks.divided import in_order, share_of_rank
from towerpack.callbacks.ema import EMA
from towerpack.core.cluster import progress
from towerpack.core.progress import Progress
from towerpack.tower import TowerFunc, TracedTower

Run = Callable[[list[Any]], list[Any]]


class Inferencer:
    """Collects the values of some tensors over all batches of a set, and returns scalars.

    Override `_get_fetches` (names of tensors), `_before_inference`, `_on_fetches` (the values of
    one batch, in the order of the names; each batch comes exactly once, in the order of the set)
    and `_after_inference` (the scalars to log). `trainer` is set from `_before_inference` on, to
    log pictures for example. In `_on_fetches`, `batch_size` is the number of samples in the batch:
    weight means of a batch by it, since the last batch may be smaller. It is None if the inputs
    differ in their first dimension. Of several ranks only the chief calls an inferencer, with the
    batches of all of them.
    """

    trainer: TrainerView
    batch_size: int | None = None

    def get_fetches(self) -> list[str]:
        """The names of the tensors that it needs."""
        return list(self._get_fetches())

    def before_inference(self) -> None:
        """Called before the first batch of the set."""
        self._before_inference()

    def on_fetches(self, values: list[Any]) -> None:
        """The values of one batch, in the order of `get_fetches`."""
        self._on_fetches(values)

    def after_inference(self) -> dict[str, float]:
        """The scalars to log."""
        return dict(self._after_inference() or {})

    def _get_fetches(self) -> Sequence[str]:
        raise NotImplementedError(f"{type(self).__name__} must define _get_fetches()")

    def _before_inference(self) -> None: ...

    def _on_fetches(self, values: list[Any]) -> None: ...

    def _after_inference(self) -> dict[str, float] | None: ...


class InferenceRunnerBase(Callback):
    """The common part of inference runners; a subclass defines how batches are run (`_outputs`).

    Ranks that train together share the batches. What they fetch travels to the chief, whose
    inferencers see all batches in the order of the set: the results are those of one process. A set
    that cannot be read by index is evaluated by the chief alone, and so is any set after
    `set_chief_only()`.
    """

    chief_only = False

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
        self._share = share_of_rank(self, self.batches)
        self.batches.setup(self._tower_func.signature, self._share)
        self._build()

    def _build(self) -> None:
        raise NotImplementedError

    def _outputs(self, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """The values of the wanted tensors for each batch, in order."""
        raise NotImplementedError

    def _tower(self, name: str, device: str | None) -> Run:
        tower = TracedTower(self._tower_func, self.trainer.store, name)
        function = tower.function(None, self._names)
        used = set(map(id, tower.variables))
        # In the order of the store, which is the same on all ranks.
        everything = self.trainer.store.variables.items()
        self._variables = {name: v for name, v in everything if id(v) in used}

        def run(inputs: list[Any]) -> list[Any]:
            with tf.device(device):
                return [tensor.numpy() for tensor in function(*inputs)]

        return run

    def _trigger(self) -> None:
        ranks, is_chief = self.trainer.ranks, self.trainer.is_chief
        if self._share is None and not is_chief:
            return
        if is_chief:
            for inferencer in self.infs:
                inferencer.trainer = self.trainer
                inferencer.before_inference()
        averages = self.ema.swapped() if self.ema is not None else contextlib.nullcontext()
        with averages, self.batches.one_pass() as batches:
            results = self._results(batches)
            if self._share is not None:
                # Statistics of a normalization differ between ranks, for example.
                ranks.copy_from_chief(self._variables)
                results = in_order(ranks, results, what=f"{self}, {self.batches.name}")
            if not is_chief:
                deque(results, maxlen=0)  # takes part in the rounds
                return
            done = self._deliver_all(results)
        if not done:
            raise ValueError(f"{self.batches.name} produced no batch in a whole pass; is it empty?")
        for inferencer in self.infs:
            for key, value in inferencer.after_inference().items():
                self.trainer.monitors.put_scalar(key, value)

    def _results(self, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """For each batch its size, and then its outputs."""
        sizes: deque[int | None] = deque()  # of the batches that are being run, in order
        for outputs in self._outputs(self._measured(batches, sizes)):
            progress.beat(self.global_step)
            yield [sizes.popleft(), *outputs]

    def _measured(
        self, batches: Iterator[list[Any]], sizes: deque[int | None]
    ) -> Iterator[list[Any]]:
        for batch in batches:
            sizes.append(batch_size(batch, self._tower_func.signature))
            yield batch

    def _deliver_all(self, results: Iterator[list[Any]]) -> int:
        """Passes the results to the inferencers; returns how many there were."""
        done = 0
        with Progress(self.batches.size(), "validation", "batch") as bar:
            for size, *outputs in results:
                self._deliver(outputs, size)
                bar.update()
                done += 1
        return done

    def _deliver(self, outputs: list[Any], size: int | None) -> None:
        values = dict(zip(self._names, outputs, strict=True))
        for inferencer, names in zip(self.infs, self._fetches, strict=True):
            inferencer.batch_size = size
            inferencer.on_fetches([values[name] for name in names])

    def _after_train(self) -> None:
        self.batches.close()


class InferenceRunner(InferenceRunnerBase):
    """Runs a whole set through the tower under `is_training=False`, at each trigger.

    `input` is a flow or any input source. The variables are those in training, or their averages
    if an `EMA` is given. Every batch is used exactly once, in order, including a smaller last one.
    The scalars of the inferencers are logged. `device` is the number of a GPU, or -1 for the CPU.

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
    """An `InferenceRunner` with one tower on each of several devices, which run in parallel.

    The results are those of one tower: every batch exactly once, delivered in order, for any number
    of batches and any size of the last. `gpus` is a number of GPUs or a list of their numbers;
    without GPUs, the CPU devices of TensorFlow are used instead.
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
    """The devices of these numbers: -1 is the CPU; None leaves the choice to TensorFlow."""
    gpus = len(tf.config.list_logical_devices("GPU"))
    if gpus:
        if max(numbers) >= gpus:
            raise ValueError(f"expected GPUs of 0 to {gpus - 1}, received {list(numbers)}")
        return ["/cpu:0" if number < 0 else f"/gpu:{number}" for number in numbers]
    cpus = len(tf.config.list_logical_devices("CPU"))
    return [None if len(numbers) == 1 else f"/cpu:{max(number, 0) % cpus}" for number in numbers]


def batch_size(inputs: Sequence[Any], signature: Sequence[Any]) -> int | None:
    """The number of samples in a batch: the first dimension of its inputs.

    Inputs that the model declares with a fixed size are ignored if others have an open batch size.
    None if the sizes differ.
    """
    open_ = [x for x, spec in zip(inputs, signature, strict=True) if not _is_fixed(spec.shape)]
    sizes = {int(x.shape[0]) for x in open_ or inputs[:1] if len(x.shape)}
    return sizes.pop() if len(sizes) == 1 else None


def _is_fixed(shape: Any) -> bool:
    return shape.rank == 0 or (shape.rank is not None and shape[0] is not None)

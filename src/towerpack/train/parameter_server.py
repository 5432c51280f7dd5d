"""Training one cost on many machines without waiting for each other: parameter servers, workers.

How it works, on `tf.distribute.coordinator.ClusterCoordinator`:

- `towerpack launch --nproc 4 --servers 1 train.py` starts four ranks. Rank 0, the chief, runs the
  script; the next is a parameter server, and the others are workers. These two kinds become
  TensorFlow servers when TensorFlow is loaded (`towerpack._servers`), so they never get to the
  script's own lines. They end with the chief.
- Variables are plain ones, made on the servers in turn (`tf.device`): optimizers, callbacks and
  checkpoints use them as they use others. TensorFlow copies values where they are needed.
- The chief traces the step of one tower as every trainer does. The coordinator has a worker run
  it, on the next batch of the worker's own dataset: it reads the variables, computes gradients, and
  applies them on the servers. A few steps for each worker are under way at any time.
- Before a callback acts on the model, and before the end, the chief waits for all of these.
- The launcher starts a worker that dies again, alone; the coordinator repeats the step that was
  lost, and takes the worker back. If the chief or a server dies, all ranks start again and resume
  from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from towerpack._cluster import end_at_once
from towerpack._servers import coordinator
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback
from towerpack.core import logger
from towerpack.core.cluster import WrongUse, this_cluster
from towerpack.dataflow.base import DataFlow
from towerpack.input_source import InputSource, PerWorkerInput
from towerpack.monitor import MonitorBase
from towerpack.tower.determinism import tracing_with
from towerpack.tower.summary_writer import silenced
from towerpack.train.builder import StepBuilder
from towerpack.train.non_finite import (
    ADVICE,
    NAMED_WEIGHTS,
    NonFiniteCost,
    NonFiniteWeights,
    all_finite,
)
from towerpack.train.runner import StepRunner
from towerpack.train.tower_trainer import SingleCostTrainer

AHEAD = 3  # steps for each worker that are under way, so that it need not wait for the chief
CALL_SECONDS = 0.2  # then the loop may show progress


class _Builder(StepBuilder):
    """Builds the step without `tf.summary`, whose files a worker cannot write."""

    def writes_summaries(self) -> bool:
        return False

    def _summaries(self, fetches: tuple[str, ...]) -> Any:
        return silenced()


class CoordinatedRunner(StepRunner):
    """Has workers run single steps, several at a time."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._under_way: deque[Any] = deque()

    def open(self, coordinator: Any, data: PerWorkerInput, workers: int) -> None:
        """Has each worker make its dataset."""
        self.coordinator, self._data = coordinator, data
        self._iterators = data.iterators(coordinator, workers)

    def single_step(self, fetches: tuple[str, ...] = (), tower: int = 0) -> Any:
        """The traced step. Only its cost is checked: to check all weights is to fetch them."""
        if fetches not in self.traced:

            def step(*inputs: Any) -> tuple[Any, dict[str, Any]]:
                result = self.builder.step(fetches, [inputs])
                return result.cost, result.fetched

            with tracing_with(self._seed):
                traced = tf.function(step, autograph=False).get_concrete_function(*self.specs)
            self.traced[fetches] = traced
            self.builder.adopt(traced)
            _check_on_servers(traced.variables)
        return self.traced[fetches]

    def begin(self, fetches: tuple[str, ...] = ()) -> None:
        """Has the next free worker run a step."""
        key = "on a worker", fetches
        if key not in self.traced:
            step, data = self.single_step(fetches), self._data
            self.traced[key] = tf.function(lambda it: step(*data.batch(it)), autograph=False)
        with self._errors():
            remote = self.coordinator.schedule(self.traced[key], (self._iterators,))
        self._under_way.append(remote)

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def finish(self) -> tuple[float, dict[str, Any]]:
        """Waits for the oldest step that is under way; returns its cost and what was fetched."""
        with self._errors():
            cost, fetched = self._under_way.popleft().fetch()
        return float(cost), fetched

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises the first error of all steps: those that are cancelled because of it follow."""
        try:
            try:
                yield
            except tf.errors.OpError:
                self.coordinator.join()
                raise
        except tf.errors.OutOfRangeError as error:
            raise ValueError(
                "expected data for each worker, but the dataset of one is empty; are there fewer "
                "files than workers?"
            ) from error


class DistributedTrainerParameterServer(SingleCostTrainer):
    """Trains on the workers of a cluster, none of which waits for another. Experimental.

    Start it by `towerpack launch --nproc N --servers S`: a chief, S parameter servers, and workers.
    The chief alone runs the script. Without a launcher there are one server and one worker, in this
    process. The data is a `PerWorkerInput`. A step is the update by one worker, with one batch.

    It promises less than `DistributedTrainerReplicated`:

    - Gradients may be of older weights, and the order of updates differs between runs, so no run
      repeats another.
    - A step whose worker is lost is run again, although its update may have been applied in part or
      whole: at least once. It counts once.
    - The position in the data is not saved; see `PerWorkerInput`.
    - A worker may be lost at any time. If the chief or a server is, all ranks start again from the
      last checkpoint, so save some.

    A callback that observes every step has steps run one after the other, by one worker at a time.
    Callbacks, validation and checkpoints work in the chief, after all steps before them. Weights
    are checked for NaN before they are saved. Variables must be made in the tower function.

    Args:
        precision: 'float32' or 'bfloat16', as for other trainers.
    """

    builder_class = _Builder
    runner_class = CoordinatedRunner
    runner: CoordinatedRunner
    uses_servers = True

    def __init__(self, precision: str = "float32"):
        if precision not in ("float32", "bfloat16"):
            raise ValueError(
                f"expected precision of 'float32' or 'bfloat16', received {precision!r}; a loss "
                "scale needs towers in step"
            )
        cluster = this_cluster()
        if cluster is not None and cluster.size > 1 and not cluster.servers:
            raise WrongUse(
                f"expected a cluster with parameter servers, received {cluster.size} equal ranks "
                f"from {cluster.source}; start them by `towerpack launch --servers 1`, or use "
                "DistributedTrainerReplicated"
            )
        if cluster is not None and cluster.servers:
            counts = cluster.servers, len(cluster.jobs["worker"])
            logger.info("the chief of %d parameter servers and %d workers", *counts)
            self.workers = counts[1]
            sys.excepthook = end_at_once
        else:
            logger.info("training on one machine, with one parameter server and one worker")
            self.workers, cluster = 1, None
        self._coordinator = coordinator(cluster)
        self._servers = 1 if cluster is None else cluster.servers
        self._placed = 0  # variables so far
        super().__init__(precision=precision, jit=False, steps_per_call=1)

    def setup_graph(
        self,
        input_signature: Sequence[Any],
        input: InputSource,
        get_cost_fn: Callable[..., Any],
        get_opt_fn: Callable[[], Any],
    ) -> None:
        data = _checked_input(input)
        with self._on_servers():
            super().setup_graph(input_signature, data, get_cost_fn, get_opt_fn)
        self.runner.open(self._coordinator, data, self.workers)

    def setup_callbacks(
        self, callbacks: Sequence[Callback], monitors: Sequence[MonitorBase]
    ) -> None:
        with self._on_servers():
            super().setup_callbacks(callbacks, monitors)

    @contextlib.contextmanager
    def _on_servers(self) -> Iterator[None]:
        """While open, each new variable is on the next parameter server."""

        def make(next_creator: Callable[..., Any], **options: Any) -> Any:
            device = f"/job:ps/task:{self._placed % self._servers}/device:CPU:0"
            self._placed += 1
            with tf.device(device):
                return next_creator(**options)

        with tf.variable_creator_scope(make):
            yield

    def configuration(self) -> dict[str, Any]:
        return {**super().configuration(), "workers": self.workers, "servers": self._servers}

    @property
    def has_summaries(self) -> bool:
        return self.builder.collects_summaries

    def step(self, fetches: tuple[str, ...] = ()) -> dict[str, Any]:
        with self._on_servers():
            self.runner.begin(fetches)
        return self._finish_one()

    def run_steps(self, count: int) -> int:
        """Runs some of the next `count` steps, and keeps others under way."""
        before, started = self.global_step, time.monotonic()
        while True:
            left = count - (self.global_step - before)
            while self.runner.under_way < min(left, AHEAD * self.workers):
                self.runner.begin()
            self._finish_one()
            if left == 1 or self.stop_request.code or time.monotonic() - started > CALL_SECONDS:
                return self.global_step - before

    def wait_for_step(self, free: int) -> int:
        """A callback that suddenly asks for the next step gets the first that is not under way."""
        return max(super().wait_for_step(free), min(1, self.runner.under_way))

    def leave_if_asked(self, codes: Sequence[int]) -> None:
        if any(codes):
            self._finish_within_epoch()
        super().leave_if_asked(codes)

    def _settle(self) -> None:
        if self._deferred:  # something is saved now
            self._finish_within_epoch()
        super()._settle()

    def _finish_within_epoch(self) -> None:
        while self.runner.under_way:
            self._finish_one()
            self.local_step += 1
        weights = self.store.trainable()
        if not bool(all_finite(list(weights.values()))):
            bad = [name for name, v in weights.items() if not bool(all_finite([v]))]
            raise NonFiniteWeights(
                f"up to step {self.global_step}, a gradient was NaN or infinite, and so are now: "
                f"{', '.join(bad[:NAMED_WEIGHTS])}. {ADVICE}"
            )

    def _finish_one(self) -> dict[str, Any]:
        cost, fetched = self.runner.finish()
        self.global_step += 1
        if not math.isfinite(cost):
            raise NonFiniteCost(
                f"the cost of a step near {self.global_step} is not finite ({cost}). {ADVICE}"
            )
        return fetched


def _checked_input(source: InputSource) -> PerWorkerInput:
    if isinstance(source, PerWorkerInput):
        return source
    flow = getattr(getattr(source, "input", source), "flow", None)
    what = f"the flow {flow.label()}" if isinstance(flow, DataFlow) else type(source).__name__
    raise TypeError(
        f"expected a PerWorkerInput, received {what}, which runs in the chief, while steps run on "
        "workers. Write the data to files and pass TrainConfig(data=PerWorkerInput(dataset_fn)), "
        "where dataset_fn(worker, workers) reads them by tf.data; a flow can be used for "
        "validation, or by DistributedTrainerReplicated"
    )


def _check_on_servers(variables: Sequence[Any]) -> None:
    wrong = sorted(v.name.removesuffix(":0") for v in variables if "/job:ps" not in v.device)
    if wrong:
        raise ValueError(
            f"expected all variables on parameter servers, but {wrong} were made before the step; "
            "make them in the tower function, or in the function that makes the optimizer"
        )

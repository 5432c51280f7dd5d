"""The processes that train together: what they add up, agree on and send to each other.

The engine is `tf.distribute.MultiWorkerMirroredStrategy`. It forms the cluster and runs the
collectives; on GPUs through NCCL, otherwise through gRPC. Variables are plain ones, each rank has
its own, and all ranks apply the same gradients to the same values.

A collective works only if all ranks call it, in the same order. So everything that decides which
collective comes next is agreed on first (`agree`), and every rank traces the same functions in the
same order, which `check_same` verifies before the first step.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from towerpack._cluster import LOST_PEER, joined
from towerpack._tensorflow import tf, v1
from towerpack.core.checksum import crc32c
from towerpack.core.cluster import Cluster, RanksDiffer, WrongUse, progress, this_cluster
from towerpack.dataflow.parallel.share import Share
from towerpack.tower.determinism import op_determinism_enabled
from towerpack.tower.gradproc import scaled
from towerpack.train.packing import open_size, packed_sum

if TYPE_CHECKING:
    from towerpack.train.base import Trainer
    from towerpack.train.builder import BuiltTower

SIGNALS = 12  # the most numbers that each rank contributes to an agreement
CLOCK = SIGNALS + 1  # the column of the time, after what they agree on and the signals
WORD = 4  # bytes: what is no number travels as int32, and sums with zeros are exact
NAMED = 5  # in an error: the differences between two ranks


class OneRank:
    """A run of one process: nothing to add up, and nothing to agree on."""

    rank, size = 0, 1

    hosts: Sequence[str] = ()
    """The host of each rank; empty if there is one rank."""

    waited = 0.0
    """Seconds that this rank has spent in `agree` so far, most of them waiting for the others."""

    def now(self) -> float:
        """A time in seconds that is the same on all ranks: they act together at an interval.

        Of several ranks it is the chief's time at the last agreement.
        """
        return time.monotonic()

    def seconds_in_sums(self) -> float:
        """The seconds that the steps have spent in the sums over all ranks so far."""
        return 0.0

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def share(self, towers: int) -> Share | None:
        """Which batches belong to this rank, if a step takes one for each of its towers."""
        return None

    def sum_in_tower(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The sums of tensors over this tower and its like on all ranks, with gradients.

        The gradient of a sum is that of the costs of all ranks. Each tower of a rank calls it, in
        the same order as those of the others.
        """
        return tensors

    def combined(self, towers: Sequence[BuiltTower]) -> tuple[list[BuiltTower], Any]:
        """Towers with the gradients of all ranks, and the sum of the costs of all their towers.

        Called while a step is traced, with the towers of this rank.
        """
        costs = [objective.cost for tower in towers for objective in tower.objectives]
        return list(towers), tf.add_n([tf.cast(cost, tf.float64) for cost in costs])

    def agree(self, *signals: float, what: str = "a value") -> np.ndarray:
        """The signals of all ranks, a row for each.

        Raises `RanksDiffer` if the ranks do not all agree on the same thing, which `what` names.
        """
        return np.array([signals], np.float64)

    def gather(self, value: bytes, what: str = "a message") -> list[bytes]:
        """The values of all ranks, in their order."""
        return [value]

    def from_chief(self, value: Any, what: str = "what the chief knows") -> Any:
        """The chief's value, which is JSON."""
        return value

    def copy_from_chief(self, variables: Mapping[str, Any]) -> list[str]:
        """Gives the variables the chief's values, bit for bit.

        Returns the names of those that differed. Variables that a rank does not have are left out.
        """
        return []

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Raises `RanksDiffer` with the differences, unless all ranks have the same facts."""

    def report(self, error: BaseException) -> None:
        """Reports to the launcher that another rank was lost, if this is the error.

        The launcher then ends this process, whatever the script does with the error.
        """


class Ranks(OneRank):
    """The ranks of a cluster, each a process with its own towers; the chief is rank 0.

    With `average=False` gradients are summed. With `half` they travel as bfloat16, which halves the
    traffic and rounds them.
    """

    def __init__(self, cluster: Cluster, average: bool = True, half: bool = False):
        self.rank, self.size = cluster.rank, cluster.size
        self.average, self.half = average, half
        self.strategy = joined(cluster)
        # Traced here, before the user's code: the first collectives of all ranks are these.
        table = tf.TensorSpec([self.size, SIGNALS + 2], tf.float64)
        self._sum_signals = self._sum_function(table)
        self._sum_bits = self._sum_function(tf.TensorSpec([None], tf.int32))
        self._now = 0.0
        self._in_sums = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        self.hosts = [n.decode() for n in self.gather(socket.gethostname().encode(), "the hosts")]

    def _sum_function(self, spec: Any) -> Any:
        function = tf.function(lambda x: self.sum([x])[0], autograph=False, input_signature=[spec])
        return function.get_concrete_function()

    def sum(self, tensors: Sequence[Any], bytes_per_pack: int = 0) -> list[Any]:
        """The sums of tensors of one dtype over all ranks, in the graph that is being traced.

        They travel in one message, or in several of about `bytes_per_pack`, one after the other: a
        function runs collectives in the order in which they were traced. So any number of them
        works. Collectives in parallel would occupy a thread each.
        """
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)

        def reduce() -> list[Any]:
            # A tensor from outside has no device that the strategy would accept.
            own = [tf.nest.map_structure(tf.identity, x, expand_composites=True) for x in tensors]
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, own, options)

        return list(self.strategy.run(reduce))

    def sum_in_tower(self, tensors: Sequence[Any]) -> Sequence[Any]:
        @tf.custom_gradient
        def summed(*own: Any) -> tuple[list[Any], Any]:
            return self._sum_apart(own), lambda *upstream: self._sum_apart(upstream)

        return list(summed(*tensors))

    def _sum_apart(self, tensors: Sequence[Any]) -> list[Any]:
        """`sum` in a thread of its own, if this one runs a tower of another strategy."""
        if not tf.distribute.has_strategy():
            return self.sum(tensors)
        graph = None if tf.executing_eagerly() else v1.get_default_graph()

        def run() -> list[Any]:
            with contextlib.nullcontext() if graph is None else graph.as_default():
                return self.sum(tensors)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(run).result()

    def share(self, towers: int) -> Share:
        return Share(self.rank, self.size, towers)

    def combined(self, towers: Sequence[BuiltTower]) -> tuple[list[BuiltTower], Any]:
        """The gradients are means over the datapoints of all ranks, or `size` times that."""
        _, cost = super().combined(towers)
        counts = [open_size(tower.inputs) for tower in towers]
        # If the graph knows the size of a batch, all batches of all ranks have it.
        rows = None if any(count is None for count in counts) else tf.add_n(counts)
        weight = tf.constant(1.0) if rows is None else tf.cast(rows, tf.float32)
        weighted, kinds = [], []
        for gradient, variable in (pair for pairs in towers[0].gradients for pair in pairs):
            if not isinstance(gradient, tf.IndexedSlices):
                gradient = tf.ensure_shape(gradient, variable.shape)
            weighted.append(scaled(gradient, weight))
            double = gradient.dtype == tf.float64
            kinds.append(tf.bfloat16 if self.half else tf.float64 if double else tf.float32)
        numbers = [tf.cast(cost, tf.float32), weight]
        kinds += [tf.float32, tf.float32]
        values = [*weighted, *numbers]
        *total, cost, all_weights = packed_sum(self._timed_sum, self.size, values, kinds)
        factor = (1.0 if self.average else float(self.size)) / all_weights
        means = iter([scaled(gradient, factor) for gradient in total])
        summed = [[(next(means), v) for _, v in pairs] for pairs in towers[0].gradients]

        def with_means(tower: BuiltTower) -> BuiltTower:
            pairs = [
                [(mean, variable) for (mean, _), (_, variable) in zip(part, old, strict=True)]
                for part, old in zip(summed, tower.gradients, strict=True)
            ]
            return replace(tower, gradients=pairs)

        return [with_means(tower) for tower in towers], tf.cast(cost, tf.float64)

    def _timed_sum(self, tensors: Sequence[Any], bytes_per_pack: int = 0) -> list[Any]:
        """`sum`, with its seconds added up: the rank for which the others wait has the fewest.

        They are not known with op determinism, under which TensorFlow refuses to read the time.
        """
        if op_determinism_enabled():
            return self.sum(tensors, bytes_per_pack)
        with tf.control_dependencies(tf.nest.flatten(tensors, expand_composites=True)):
            begun = tf.timestamp()
        with tf.control_dependencies([begun]):
            tensors = tf.nest.map_structure(tf.identity, list(tensors), expand_composites=True)
        summed = self.sum(tensors, bytes_per_pack)
        with tf.control_dependencies(tf.nest.flatten(summed, expand_composites=True)):
            seconds = tf.timestamp() - begun
        # Not `assign_add`, by which a trainer would find the variable and save it.
        tf.raw_ops.AssignAddVariableOp(resource=self._in_sums.handle, value=seconds)
        return summed

    def seconds_in_sums(self) -> float:
        return float(self._in_sums.numpy())

    def now(self) -> float:
        return self._now

    def agree(self, *signals: float, what: str = "a value") -> np.ndarray:
        table = np.zeros([self.size, SIGNALS + 2])
        table[self.rank, : len(signals) + 1] = [zlib.crc32(what.encode()), *signals]
        table[self.rank, CLOCK] = begun = time.monotonic()
        with progress.waiting():
            found = self._sum_signals(tf.constant(table)).numpy()
        self.waited += time.monotonic() - begun
        self._now = float(found[0, CLOCK])
        if (found[:, 0] != found[0, 0]).any():
            names = self._gather(what.encode(), WORD * SIGNALS)
            places = [f"{n.rstrip(bytes(1)).decode()} on rank {r}" for r, n in enumerate(names)]
            raise RanksDiffer(
                "expected all ranks to take the same path through the program, but they exchange: "
                f"{'; '.join(places)}. Does the script or a callback act only on some ranks?"
            )
        return found[:, 1 : len(signals) + 1]

    def report(self, error: BaseException) -> None:
        if isinstance(error, LOST_PEER):
            progress.report_failure(error, secondary=True)

    def gather(self, value: bytes, what: str = "a message") -> list[bytes]:
        sizes = self.agree(len(value), what=what)[:, 0].astype(int)
        found = self._gather(value, -(-int(sizes.max()) // WORD) * WORD)
        return [row[:size] for row, size in zip(found, sizes, strict=True)]

    def _gather(self, value: bytes, width: int) -> list[bytes]:
        """The values of all ranks, with zeros after them."""
        table = np.zeros([self.size, width], np.uint8)
        table[self.rank, : len(value)] = np.frombuffer(value[:width], np.uint8)
        words = self._sum_bits(tf.constant(table.view(np.int32).ravel())).numpy()
        return [row.tobytes() for row in words.view(np.uint8).reshape(self.size, width)]

    def from_chief(self, value: Any, what: str = "what the chief knows") -> Any:
        message = json.dumps(value).encode() if self.is_chief else b""
        return json.loads(self.gather(message, what)[0])

    def copy_from_chief(self, variables: Mapping[str, Any]) -> list[str]:
        copied = [n for n, v in variables.items() if v.dtype != tf.string and all(v.shape)]
        values = {name: _bytes_of(variables[name]) for name in copied}
        sums = {name: [crc32c(value), len(value)] for name, value in values.items()}
        of_ranks = [
            json.loads(text)
            for text in self.gather(json.dumps(sums).encode(), "the values of variables")
        ]
        different = [
            name
            for name, of_chief in of_ranks[0].items()
            if any(other.get(name, of_chief) != of_chief for other in of_ranks)
        ]
        for name in different:
            size = of_ranks[0][name][1]
            bits = np.zeros(-(-size // WORD) * WORD, np.uint8)
            if self.is_chief:
                bits[:size] = values[name]
            found = self._sum_bits(tf.constant(bits.view(np.int32))).numpy().view(np.uint8)[:size]
            if not self.is_chief and name in variables:
                variable = variables[name]
                dtype = variable.dtype.as_numpy_dtype
                variable.assign(found.view(dtype).reshape(variable.shape))
        return different

    def check_same(self, facts: Mapping[str, Any]) -> None:
        everyone = [
            json.loads(text)
            for text in self.gather(json.dumps(facts).encode(), "a comparison of the programs")
        ]
        wrong = [
            f"{name}: {difference(own, other.get(name), rank)}"
            for rank, other in enumerate(everyone)
            for name, own in everyone[0].items()
            if not is_same(own, other.get(name))
        ]
        if wrong:
            raise RanksDiffer(
                "expected the same program, data and options on all ranks, received "
                + "; ".join(wrong)
            )


def check_not_alone(trainer: Trainer) -> None:
    """Refuses a trainer of one process where several were started to train together."""
    cluster = this_cluster()
    if cluster is None or not trainer.trains:
        return
    kind = type(trainer).__name__
    if cluster.servers and not trainer.uses_servers:
        raise WrongUse(
            f"expected a trainer for a cluster with parameter servers, received {kind}; use "
            "DistributedTrainerParameterServer, or start the ranks without --servers"
        )
    if cluster.servers or trainer.ranks.size == cluster.size:
        return
    raise WrongUse(
        f"expected a trainer for the {cluster.size} ranks that were started ({cluster.source}), "
        f"received {kind}, which would train on each of them by itself. Use "
        "DistributedTrainerReplicated, or pass ranks=ranks_of_run() to a TowerTrainer of your own. "
        "To train on one machine, start one process"
    )


def is_same(first: Any, other: Any) -> bool:
    """Whether two ranks have the same fact; of dicts, what both have counts.

    >>> is_same({"a": 1, "b": 2}, {"a": 1, "c": 3})
    True
    """
    if isinstance(first, dict) and isinstance(other, dict):
        return all(other.get(key, value) == value for key, value in first.items())
    return bool(first == other)


def difference(first: Any, other: Any, rank: int) -> str:
    """How a fact of rank 0 differs from that of another rank; of lists, only what differs.

    >>> difference(["a", "b", "c"], ["a", "c", "d"], 1)
    "only on rank 0: ['b'], only on rank 1: ['d']"
    """
    if isinstance(first, dict) and isinstance(other, dict):
        differ = [key for key, value in first.items() if other.get(key, value) != value]
        return f"not the same on rank 0 and rank {rank}: {', '.join(differ[:NAMED])}"
    if isinstance(first, list) and isinstance(other, list):
        here = [item for item in first if item not in other]
        there = [item for item in other if item not in first]
        if here or there:
            return f"only on rank 0: {here[:NAMED]}, only on rank {rank}: {there[:NAMED]}"
        at = next((i for i, (x, y) in enumerate(zip(first, other, strict=False)) if x != y), None)
        if at is None:
            return f"{len(first)} on rank 0, {len(other)} on rank {rank}"
        return f"number {at} is {first[at]!r} on rank 0, {other[at]!r} on rank {rank}"
    return f"{first!r} on rank 0, {other!r} on rank {rank}"


def _bytes_of(variable: Any) -> np.ndarray:
    """The value of a variable, which is not of strings, as bytes."""
    return np.ascontiguousarray(variable.numpy()).reshape(-1).view(np.uint8)

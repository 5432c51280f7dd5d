"""The processes that train together: what they add up, agree on and send to each other.

The engine is `tf.distribute.MultiWorkerMirroredStrategy`. It forms the cluster and runs the
collectives; on GPUs through NCCL, otherwise through gRPC. Variables are plain ones, each rank has
its own, and all ranks apply the same gradients to the same values.

A collective works only if all ranks call it, in the same order. So everything that decides which
collective comes next is agreed on first (`agree`), and every rank traces the same functions in the
same order, which `check_same` verifies before the first step.
"""

from __future__ import annotations

import json
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from towerpack._cluster import RanksDiffer, joined
from towerpack._tensorflow import tf
from towerpack.core.checksum import crc32c
from towerpack.core.cluster import Cluster, progress
from towerpack.dataflow.parallel.share import Share
from towerpack.tower.determinism import op_determinism_enabled
from towerpack.tower.gradproc import scaled

if TYPE_CHECKING:
    from towerpack.train.builder import BuiltTower

CHUNK = 1 << 19  # elements: gRPC sends several such parts at once, 3 times as fast as one of 25M
SIGNALS = 10  # numbers that each rank contributes to an agreement; the last two are these:
PLACE, CLOCK = SIGNALS - 2, SIGNALS - 1
WORD = 4  # bytes: what is no number travels as int32, and sums with zeros are exact


class OneRank:
    """A run of one process: nothing to add up, and nothing to agree on."""

    rank, size = 0, 1

    hosts: Sequence[str] = ()
    """The host of each rank; empty if there is one rank."""

    waited = 0.0
    """Seconds that this rank has waited in `agree` so far."""

    def now(self) -> float:
        """A time in seconds that is the same on all ranks: they act together at an interval.

        Of several ranks it is the chief's time at the last agreement.
        """
        return time.monotonic()

    def seconds_in_sums(self) -> float:
        """The seconds that the steps have waited for the sums over all ranks so far."""
        return 0.0

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def share(self, towers: int) -> Share | None:
        """Which batches belong to this rank, if a step takes one for each of its towers."""
        return None

    def combined(self, towers: Sequence[BuiltTower]) -> tuple[list[BuiltTower], Any]:
        """Towers with the gradients of all ranks, and the sum of the costs of all their towers.

        Called while a step is traced, with the towers of this rank.
        """
        costs = [objective.cost for tower in towers for objective in tower.objectives]
        return list(towers), tf.add_n([tf.cast(cost, tf.float64) for cost in costs])

    def agree(self, *signals: float, what: str = "") -> np.ndarray:
        """The signals of all ranks, a row for each.

        `what` says for what. Ranks that are not in the same place of the program raise an error
        with both places.
        """
        return np.array([signals], np.float64)

    def gather(self, value: bytes, what: str = "") -> list[bytes]:
        """The values of all ranks, in their order."""
        return [value]

    def from_chief(self, value: Any, what: str = "") -> Any:
        """The chief's value, which is JSON."""
        return value

    def copy_from_chief(self, variables: Mapping[str, Any]) -> list[str]:
        """Gives the variables the chief's values, bit for bit; returns the names of those changed."""
        return []

    def check_same(self, facts: dict[str, Any]) -> None:
        """Raises an error with the differences, unless all ranks have the same facts."""


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
        self._sum_signals = self._sum_function(tf.TensorSpec([self.size, SIGNALS], tf.float64))
        self._sum_bits = self._sum_function(tf.TensorSpec([None], tf.int32))
        self._now = 0.0
        self._in_sums = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        self.hosts = [name.decode() for name in self.gather(socket.gethostname().encode())]

    def _sum_function(self, spec: Any) -> Any:
        function = tf.function(lambda x: self.sum([x])[0], autograph=False, input_signature=[spec])
        return function.get_concrete_function()

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """The sums of tensors over all ranks, in the graph that is being traced."""

        def reduce() -> list[Any]:
            # A tensor from outside has no device that the strategy would accept.
            own = [tf.nest.map_structure(tf.identity, x, expand_composites=True) for x in tensors]
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return list(self.strategy.run(reduce))

    def share(self, towers: int) -> Share:
        return Share(self.rank, self.size, towers)

    def combined(self, towers: Sequence[BuiltTower]) -> tuple[list[BuiltTower], Any]:
        """The gradients are means over the datapoints of all ranks."""
        _, cost = super().combined(towers)
        gradients = [[gradient for gradient, _ in pairs] for pairs in towers[0].gradients]
        rows, weight = _rows(towers), 1.0
        if self.average:
            weight = 1.0 / self.size if rows is None else tf.cast(rows, tf.float32)
        weighted = [scaled(gradient, weight) for part in gradients for gradient in part]
        numbers = [tf.cast(cost, tf.float32), tf.cast(1 if rows is None else rows, tf.float32)]
        *total, cost, all_rows = self._packed_sum(weighted, numbers)
        if self.average and rows is not None:
            total = [scaled(gradient, 1.0 / all_rows) for gradient in total]
        means = tf.nest.pack_sequence_as(gradients, total)

        def with_means(tower: BuiltTower) -> BuiltTower:
            pairs = [
                [(mean, variable) for mean, (_, variable) in zip(part, old, strict=True)]
                for part, old in zip(means, tower.gradients, strict=True)
            ]
            return replace(tower, gradients=pairs)

        return [with_means(tower) for tower in towers], tf.cast(cost, tf.float64)

    def _packed_sum(self, gradients: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
        """The sums of gradients and scalars: all dense ones of a dtype travel together.

        They are cut into parts of `CHUNK` elements.
        """
        groups: dict[Any, list[int]] = {}
        values = [*gradients, *numbers]
        for number, value in enumerate(values):
            kind: Any = value.dtype if value.dtype == tf.float64 else tf.float32
            if isinstance(value, tf.IndexedSlices):
                kind = number  # travels by itself
            elif self.half and number < len(gradients):
                kind = tf.bfloat16
            groups.setdefault(kind, []).append(number)
        parts: list[Any] = []
        for kind, members in groups.items():
            if isinstance(kind, int):
                parts.append(values[kind])
                continue
            flat = [tf.reshape(tf.cast(values[number], kind), [-1]) for number in members]
            joined_up = tf.concat(flat, 0)
            parts += tf.split(joined_up, _lengths(joined_up.shape[0]))
        summed = iter(self._timed_sum(parts))
        found: dict[int, Any] = {}
        for kind, members in groups.items():
            if isinstance(kind, int):
                found[kind] = next(summed)
                continue
            sizes = [values[number].shape.num_elements() for number in members]
            flat = tf.concat([next(summed) for _ in _lengths(sum(sizes))], 0)
            for number, piece in zip(members, tf.split(flat, sizes), strict=True):
                value = values[number]
                found[number] = tf.cast(tf.reshape(piece, value.shape), value.dtype)
        return [found[number] for number in range(len(values))]

    def _timed_sum(self, tensors: Sequence[Any]) -> list[Any]:
        """`sum`, with its seconds added up: the rank for which the others wait has the fewest.

        They are not known with op determinism, under which TensorFlow refuses to read the time.
        """
        if op_determinism_enabled():
            return self.sum(tensors)
        with tf.control_dependencies(tf.nest.flatten(tensors, expand_composites=True)):
            begun = tf.timestamp()
        with tf.control_dependencies([begun]):
            tensors = tf.nest.map_structure(tf.identity, list(tensors), expand_composites=True)
        summed = self.sum(tensors)
        with tf.control_dependencies(tf.nest.flatten(summed, expand_composites=True)):
            seconds = tf.timestamp() - begun
        # Not `assign_add`, by which a trainer would find the variable and save it.
        tf.raw_ops.AssignAddVariableOp(resource=self._in_sums.handle, value=seconds)
        return summed

    def seconds_in_sums(self) -> float:
        return float(self._in_sums.numpy())

    def now(self) -> float:
        return self._now

    def agree(self, *signals: float, what: str = "") -> np.ndarray:
        place = zlib.crc32(what.encode())
        table = np.zeros([self.size, SIGNALS])
        table[self.rank, : len(signals)] = signals
        table[self.rank, PLACE:] = place, time.monotonic()
        begun = time.perf_counter()
        with progress.waiting():
            found = self._sum_signals(tf.constant(table)).numpy()
        self.waited += time.perf_counter() - begun
        self._now = float(found[0, CLOCK])
        if (found[:, PLACE] != place).any():
            self._raise_different_places(what)
        return found[:, : len(signals)]

    def _raise_different_places(self, what: str) -> None:
        """All ranks come here, so that they can tell each other where they are."""
        names = [name.decode() for name in self.gather(what.encode())]
        places = ", ".join(f"rank {rank} for {name!r}" for rank, name in enumerate(names))
        raise RanksDiffer(
            f"expected all ranks in the same place of the program, received agreements of {places}."
            " A callback that works on all ranks (chief_only=False), such as InferenceRunner or "
            "HyperParamSetter, must be called on each of them at the same steps"
        )

    def gather(self, value: bytes, what: str = "") -> list[bytes]:
        sizes = self.agree(len(value), what=what)[:, 0].astype(int)
        width = -(-max(int(sizes.max()), 1) // WORD) * WORD
        table = np.zeros([self.size, width], np.uint8)
        table[self.rank, : len(value)] = np.frombuffer(value, np.uint8)
        words = self._sum_bits(tf.constant(table.view(np.int32).ravel())).numpy()
        rows = words.view(np.uint8).reshape(self.size, width)
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def from_chief(self, value: Any, what: str = "") -> Any:
        own = json.dumps(value).encode() if self.is_chief else b""
        return json.loads(self.gather(own, what)[0])

    def copy_from_chief(self, variables: Mapping[str, Any]) -> list[str]:
        """Gives the variables the chief's values, bit for bit; only those that differ travel."""
        names = list(variables)
        variables = [v for v in variables.values() if v.dtype != tf.string and v.shape.num_elements()]
        checksums = np.array([crc32c(variable.numpy().tobytes()) for variable in variables], "<u4")
        everyone = self.gather(checksums.tobytes(), what="copying the chief's variables")
        if len({len(row) for row in everyone}) > 1:
            raise RanksDiffer(
                "expected the same variables on all ranks, received "
                f"{', '.join(str(len(row) // WORD) for row in everyone)} of them; a callback that "
                "makes variables must run on all ranks: chief_only = False"
            )
        table = np.array([np.frombuffer(row, "<u4") for row in everyone])
        for variable, differs in zip(variables, (table != table[0]).any(axis=0), strict=True):
            if differs:
                self._copy(variable)

    def _copy(self, variable: Any) -> None:
        value = variable.numpy()
        flat = np.ascontiguousarray(value).view(np.uint8).ravel()
        bits = np.zeros(-(-flat.size // WORD) * WORD, np.uint8)
        if self.is_chief:
            bits[: flat.size] = flat
        found = self._sum_bits(tf.constant(bits.view(np.int32))).numpy().view(np.uint8)
        if not self.is_chief:
            variable.assign(found[: flat.size].view(value.dtype).reshape(value.shape))

    def check_same(self, facts: dict[str, Any]) -> None:
        everyone = [json.loads(text) for text in self.gather(json.dumps(facts).encode())]
        wrong = [
            f"{name}: {own!r} on rank 0, {other.get(name)!r} on rank {rank}"
            for rank, other in enumerate(everyone)
            for name, own in everyone[0].items()
            if other.get(name) != own
        ]
        if wrong:
            raise RanksDiffer(
                "expected the same program, data and options on all ranks, received "
                + "; ".join(wrong)
            )


def _rows(towers: Sequence[BuiltTower]) -> Any:
    """The datapoints of this rank's step; None if the graph knows them, for then all are equal."""
    counts = [open_size(tower.inputs) for tower in towers]
    return None if any(count is None for count in counts) else tf.add_n(counts)


def open_size(inputs: Sequence[Any]) -> Any:
    """The size of the batch where the graph does not know it; None where it does."""
    if not inputs or not inputs[0].shape.rank or inputs[0].shape[0] is not None:
        return None
    return tf.shape(inputs[0])[0]


def _lengths(total: int) -> list[int]:
    """The lengths of nearly equal parts of at most `CHUNK`.

    >>> _lengths(10)
    [10]
    """
    parts = max(1, -(-total // CHUNK))
    size, longer = divmod(total, parts)
    return [size + 1] * longer + [size] * (parts - longer)

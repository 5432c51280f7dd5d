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
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from towerpack._cluster import LOST_PEER, RanksDiffer, joined
from towerpack._tensorflow import tf
from towerpack.core.cluster import Cluster, progress
from towerpack.dataflow.parallel.share import Share
from towerpack.tower.gradproc import scaled

if TYPE_CHECKING:
    from towerpack.train.builder import BuiltTower

CHUNK = 1 << 19  # elements: gRPC sends several such parts at once, 3 times as fast as one of 25M
SIGNALS = 8  # numbers that each rank contributes to an agreement
WORD = 4  # bytes: what is no number travels as int32, and sums with zeros are exact


class OneRank:
    """A run of one process: nothing to add up, and nothing to agree on."""

    rank, size = 0, 1

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

    def agree(self, *signals: float) -> np.ndarray:
        """The signals of all ranks, a row for each."""
        return np.array([signals], np.float64)

    def gather(self, value: bytes) -> list[bytes]:
        """The values of all ranks, in their order."""
        return [value]

    def from_chief(self, value: Any) -> Any:
        """The chief's value, which is JSON."""
        return value

    def copy_from_chief(self, variables: Sequence[Any]) -> None:
        """Gives the variables the chief's values, bit for bit."""

    def check_same(self, facts: dict[str, Any]) -> None:
        """Raises an error with the differences, unless all ranks have the same facts."""

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
        self._sum_signals = self._sum_function(tf.TensorSpec([self.size, SIGNALS], tf.float64))
        self._sum_bits = self._sum_function(tf.TensorSpec([None], tf.int32))

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
        summed = iter(self.sum(parts))
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

    def agree(self, *signals: float) -> np.ndarray:
        table = np.zeros([self.size, SIGNALS])
        table[self.rank, : len(signals)] = signals
        with progress.waiting():
            return self._sum_signals(tf.constant(table)).numpy()[:, : len(signals)]

    def report(self, error: BaseException) -> None:
        if isinstance(error, LOST_PEER):
            progress.report_failure(error, secondary=True)

    def gather(self, value: bytes) -> list[bytes]:
        sizes = self.agree(len(value))[:, 0].astype(int)
        width = -(-int(sizes.max()) // WORD) * WORD
        table = np.zeros([self.size, width], np.uint8)
        table[self.rank, : len(value)] = np.frombuffer(value, np.uint8)
        words = self._sum_bits(tf.constant(table.view(np.int32).ravel())).numpy()
        rows = words.view(np.uint8).reshape(self.size, width)
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def from_chief(self, value: Any) -> Any:
        return json.loads(self.gather(json.dumps(value).encode() if self.is_chief else b"")[0])

    def copy_from_chief(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            if variable.dtype == tf.string or not variable.shape.num_elements():
                continue
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

"""What ranks exchange, and how they notice that they do not run the same program."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.train.equality_models import Model
from tests.train.equality_script import Case, train_config
from towerpack._tensorflow import tf
from towerpack.core.cluster import RanksDiffer
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import QueueInput, TFDatasetInput
from towerpack.models import BatchNorm, FullyConnected
from towerpack.train import DistributedTrainerReplicated, ranks_of_run


def exchange(_: None) -> dict[str, Any]:
    """Every kind of message."""
    ranks = ranks_of_run()
    own = ranks.rank + 1
    values = {
        "float": [own / 3, -0.0, float("nan"), float("inf")],
        "int64": [own * 2**61, -own],
        "bool": [own == 1, True, False],
        "bfloat16": [own / 7] * 3,
        "float16": [own / 7] * 5,
        "uint8": [own, 255],
        "complex64": [own + 1j],
        "equal": [1.5],
    }
    dtypes = {name: name for name in values} | {"float": "float32", "equal": "float64"}
    variables = {
        name: tf.Variable(tf.constant(value, tf.as_dtype(dtypes[name])))
        for name, value in values.items()
    }
    variables["text"] = tf.Variable(f"rank {ranks.rank}")
    variables["empty"] = tf.Variable(tf.zeros([0, 3]))
    if ranks.is_chief:
        variables["of the chief"] = tf.Variable(tf.zeros([3]))
    changed = ranks.copy_from_chief(variables)
    return {
        "agreed": ranks.agree(own, -own / 3).tolist(),
        "gathered": [value.decode() for value in ranks.gather(b"ab" * own)],
        "of chief": ranks.from_chief({"rank": ranks.rank, "none": None}),
        "changed": changed,
        "again": ranks.copy_from_chief(variables),
        "values": {
            name: np.asarray(v.numpy()).tobytes().hex()
            for name, v in variables.items()
            if name not in ("text", "of the chief")
        },
        "text": variables["text"].numpy().decode(),
    }


def many_sums(argument: dict[str, int]) -> float:
    """Adds up many tensors at once, in calls of many steps; returns the sum of the results."""
    ranks, count = ranks_of_run(), argument["tensors"]

    @tf.function(autograph=False)
    def steps() -> Any:
        def body(step: Any, total: Any) -> tuple[Any, Any]:
            parts = [tf.fill([argument["size"]], tf.cast(step, tf.float32)) for _ in range(count)]
            return step + 1, total + tf.add_n([tf.reduce_mean(x) for x in ranks.sum(parts)])

        start = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda n, _: n < argument["steps"], body, start)[1]

    return float(steps())


def differ(argument: dict[str, str]) -> dict[str, str]:
    """Trains with one difference between the ranks at a time; returns the errors.

    `argument` has the directories of each rank's own code.
    """
    found = {}
    for name, run in DIFFERENCES.items():
        rank = ranks_of_run().rank
        tf.keras.utils.set_random_seed(7)
        try:
            run(rank, argument)
        except RanksDiffer as error:
            found[name] = str(error)
    return found


def _code(rank: int, argument: dict[str, str]) -> None:
    sys.path.insert(0, argument[str(rank)])
    try:
        importlib.import_module("own_code_of_a_rank")
        DistributedTrainerReplicated()
    finally:
        sys.path.remove(argument[str(rank)])
        del sys.modules["own_code_of_a_rank"]


class Wide(Model):
    width = 8

    def hidden(self, x):
        return FullyConnected("fc0", x, self.width, activation=tf.nn.tanh)


class Ordered(Model):
    """Two synchronized layers side by side, in the order of this rank."""

    reverse = False

    def hidden(self, x):
        layers = [("bn1", 4), ("bn0", 2)] if self.reverse else [("bn0", 2), ("bn1", 4)]
        with tf.compat.v1.variable_scope("", reuse=tf.compat.v1.AUTO_REUSE):
            parts = {
                name: BatchNorm(name, x[:, :size], sync_statistics=True, scale=False, center=False)
                for name, size in layers
            }
        return tf.concat([parts["bn0"], parts["bn1"]], 1)


def _model(make: Callable[[int], Any]) -> Callable[[int, Any], None]:
    return lambda rank, _: _train(Case(model=lambda: make(rank)))


def _train(case: Case) -> None:
    train_config(case, 1)


def _rows(rank: int, _: Any) -> None:
    x = np.full([800, 6], rank, np.float32)
    flow = BatchData(DataFromArrays(x, x[:, 0], shuffle=True), 8)
    _train(Case(data=lambda case: QueueInput(flow)))


def _unseeded(rank: int, _: Any) -> None:
    tf.random.set_seed(None)
    x = np.arange(6000, dtype=np.float32).reshape(1000, 6)
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).shuffle(1000).batch(8)
    _train(Case(data=lambda case: TFDatasetInput(dataset)))


def _path(rank: int, _: Any) -> None:
    ranks = ranks_of_run()
    if rank:
        ranks.agree(1, what="a thing")
    else:
        ranks.gather(b"message", "another thing")


def _trainer(rank: int, _: Any) -> None:
    class Other(DistributedTrainerReplicated):
        pass

    kinds = [DistributedTrainerReplicated, Other]
    _train(Case(trainer=lambda towers, **options: kinds[rank](towers, **options)))


DIFFERENCES: dict[str, Callable[[int, Any], None]] = {
    "code": _code,
    "options": lambda rank, _: _train(Case(options={"steps_per_call": 3 + rank})),
    "towers": lambda rank, _: train_config(Case(), 1 + rank),
    "compression": lambda rank, _: _train(
        Case(options={"compression": "bfloat16" if rank else None})
    ),
    "trainer": _trainer,
    "steps per epoch": lambda rank, _: _train(Case(steps_per_epoch=10 + rank)),
    "epochs": lambda rank, _: _train(Case(epochs=2 + rank)),
    "length": lambda rank, _: _train(Case(rows=800 + 8 * rank)),
    "rows": _rows,
    "an unseeded shuffle": _unseeded,
    "variables": _model(lambda rank: type("Model", (Wide,), {"width": 8 + rank})()),
    "order": _model(lambda rank: type("Model", (Ordered,), {"reverse": bool(rank)})()),
    "path": _path,
}

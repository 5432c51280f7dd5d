"""What ranks run in `test_collectives.py`."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.train import packing
from towerpack.train.distributed import ranks_of_run


def many_at_once(argument: Any) -> Any:
    """Adds up numbers in `steps` steps of one call, which has many collectives in each step.

    Returns the sums of some of them after each call, the number of collectives in a step, and by
    how many threads this process has grown.
    """
    packing.CHUNK = argument["chunk"]
    ranks: Any = ranks_of_run()
    ranks.agree(0)  # starts the threads that any collective needs
    values = [
        tf.Variable(tf.range(n, dtype=tf.float32) % 7 + ranks.rank) for n in argument["sizes"]
    ]

    def step(last: Any) -> Any:
        own = [value + last for value in values]
        summed = packing.packed_sum(ranks.sum, ranks.size, own, [tf.float32] * len(own))
        with tf.control_dependencies(summed):
            return last + 1.0, [value[:7] for value in summed]

    @tf.function(autograph=False)
    def call(first: Any) -> Any:
        end = first + argument["steps"]
        nothing = [tf.zeros([min(n, 7)]) for n in argument["sizes"]]
        return tf.while_loop(lambda at, _: at < end, lambda at, _: step(at), (first, nothing))

    traced = call.get_concrete_function(tf.constant(0.0))
    before = most = len(os.listdir("/proc/self/task"))
    found = []
    for number in range(argument["calls"]):
        with _ThreadCount() as count:
            _, last = traced(tf.constant(float(number)))
        found.append([value.numpy().tolist() for value in last])
        most = max(most, count.most)
    nodes = (node for f in traced.graph.as_graph_def().library.function for node in f.node_def)
    collectives = sum(node.op == "CollectiveReduceV2" for node in nodes)
    return {"sums": found, "collectives": collectives, "threads": most - before}


def many_and_mixed(argument: Any) -> Any:
    return many_at_once(argument), _mixed_dtypes()


def _mixed_dtypes() -> Any:
    """Adds up gradients of several dtypes and forms, as `compression='bfloat16'` sends them."""
    packing.CHUNK, ranks = 4, ranks_of_run()
    weight = float(ranks.rank + 1)

    @tf.function(autograph=False)
    def call() -> Any:
        values = [
            tf.reshape(tf.range(24.0), [4, 6]) * weight,
            tf.IndexedSlices(
                tf.ones([1, 3]) * weight, tf.constant([ranks.rank]), tf.constant([5, 3])
            ),
            tf.cast(tf.range(11), tf.float64) * weight,
            tf.zeros([0, 3]),
            tf.constant(weight),
        ]
        kinds = [tf.bfloat16, tf.float32, tf.float64, tf.bfloat16, tf.float32]
        return packing.packed_sum(ranks.sum, ranks.size, values, kinds)

    return [np.asarray(tf.convert_to_tensor(value)).tolist() for value in call()]


class _ThreadCount:
    """The largest number of threads of this process, as counted every few milliseconds."""

    def __enter__(self) -> _ThreadCount:
        self.most, self._end = 0, threading.Event()
        self._thread = threading.Thread(target=self._count)
        self._thread.start()
        return self

    def _count(self) -> None:
        while not self._end.wait(0.003):
            self.most = max(self.most, len(os.listdir("/proc/self/task")))

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

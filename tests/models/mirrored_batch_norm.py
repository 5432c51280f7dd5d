"""Batch norm on two replicas, printed as JSON; a process of its own, for its two devices."""

from __future__ import annotations

import json
import sys

import numpy as np

from towerpack._tensorflow import tf
from towerpack.models import BatchNorm
from towerpack.tower import TowerContext, VariableStore

CHANNELS = 3


def run(strategy, x, weight, sync):
    """Output, gradient of the input and moving averages after one training step."""
    store = VariableStore()
    replicas = strategy.num_replicas_in_sync

    def split(values):
        parts = np.split(values, replicas)
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    def tower(x, weight):
        context = tf.distribute.get_replica_context()
        index = context.replica_id_in_sync_group
        index = index if isinstance(index, int) else int(tf.get_static_value(index))
        with (
            TowerContext("", is_training=True, store=store, index=index, total=replicas),
            tf.GradientTape() as tape,
        ):
            tape.watch(x)
            output = BatchNorm("bn", x, momentum=0.0, sync_statistics=sync)
            # Each replica's own part of the sum: the gradient of the total is what counts.
            cost = tf.reduce_sum(output * weight)
        return output, tape.gradient(cost, x)

    with strategy.scope():
        step = tf.function(lambda *args: strategy.run(tower, args), autograph=False)
        output, dx = step(split(x), split(weight))
        with TowerContext("", is_training=False, store=store):
            inference = BatchNorm("bn", tf.constant(x))
    gathered = [np.concatenate(strategy.experimental_local_results(t)) for t in (output, dx)]
    return {
        "output": gathered[0].tolist(),
        "dx": gathered[1].tolist(),
        "mean": store["bn/mean/EMA"].numpy().tolist(),
        "variance": store["bn/variance/EMA"].numpy().tolist(),
        "inference": inference.numpy().tolist(),
    }


def main():
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    generator = np.random.default_rng(0)
    x = generator.normal(1, 2, size=(4, 3, 2, CHANNELS)).astype(np.float32)
    x[2:] += 3  # so that the replicas' statistics differ
    weight = generator.normal(size=x.shape).astype(np.float32)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = {
        "x": x.tolist(),
        "whole": run(tf.distribute.get_strategy(), x, weight, sync=None),
        "synchronized": run(mirrored, x, weight, sync=True),
        "apart": run(mirrored, x, weight, sync=None),
    }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()

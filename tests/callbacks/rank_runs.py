"""What ranks run in the tests of callbacks (see `tests.train.ranks_of_a_test`)."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

import towerpack.callbacks as room
from tests.callbacks.training import Model, run
from tests.tiny_model import tiny_arrays
from towerpack.dataflow import BatchData, DataFromArrays, DataFromGenerator, MapData
from towerpack.input_source import QueueInput
from towerpack.train.distributed import DistributedTrainerReplicated

EPOCHS, STEPS = 2, 5


def flow(batch: int, samples: int | None = None, shuffle: bool = False) -> Any:
    """Batches of the tiny data; the last one may be smaller."""
    arrays = [array[:samples] for array in tiny_arrays()]
    return BatchData(DataFromArrays(*arrays, shuffle=shuffle), batch, remainder=True)


def generated(batch: int) -> Any:
    """The same batches without random access."""
    return DataFromGenerator(lambda: iter(list(flow(batch))))


class Seen(room.Inferencer):
    """Notes everything that it is given, in its order."""

    def __init__(self, name: str):
        self.name, self.passes = name, []

    def _get_fetches(self) -> list[str]:
        return ["x", "cost", "names"]

    def _before_inference(self) -> None:
        self._batches: list[Any] = []

    def _on_fetches(self, values: list[Any]) -> None:
        x, cost, names = values
        x += 0  # an inferencer may write to what it received
        found = [len(x), self.batch_size, f"{zlib.crc32(x.tobytes()):08x}", repr(cost)]
        self._batches.append([*found, names.dtype.kind, names.tolist()[0].decode()])

    def _after_inference(self) -> dict[str, float]:
        self.passes.append(self._batches)
        return {f"{self.name}_batches": len(self._batches)}


class NamedModel(Model):
    """Also has strings to fetch, and statistics that differ between ranks."""

    def build_graph(self, x: Any, label: Any) -> Any:
        import tensorflow as tf

        from towerpack import BatchNorm

        tf.strings.as_string(label, name="names")
        return super().build_graph(BatchNorm("bn", x, momentum=0.5), label)


SETS = {
    "even": lambda: flow(10),
    "uneven": lambda: flow(7),
    "one": lambda: flow(60),
    "many": lambda: flow(1),
    "source": lambda: QueueInput(flow(7)),
    "mapped": lambda: QueueInput(MapData(flow(11), lambda batch: batch)),
    "generated": lambda: generated(7),
}


def validation(argument: dict[str, int]) -> dict[str, Any]:
    """Validates on many sets while it trains; what the inferencers were given, and the scalars."""
    trainer = DistributedTrainerReplicated(argument["towers"], steps_per_call=2)
    seen = {name: Seen(name) for name in SETS}
    ema = room.EMA(0.5)
    runners = [
        room.InferenceRunner(SETS[name](), [seen[name], room.ScalarStats("cost", name)])
        for name in SETS
    ]
    runners += [
        room.DataParallelInferenceRunner(flow(7), room.ScalarStats("cost", "towers"), 2),
        room.InferenceRunner(flow(7), room.ClassificationError(summary_name="averaged"), ema=ema),
        room.InferenceRunner(
            flow(7), room.ScalarStats("cost", "alone"), tower_name="Alone"
        ).set_chief_only(),
        room.PeriodicTrigger(
            room.InferenceRunner(flow(9), room.ScalarStats("cost", "often")), every_k_steps=2
        ),
    ]
    result = run(
        [ema, *runners],
        EPOCHS,
        model=NamedModel(),
        trainer=trainer,
        flow=BatchData(DataFromArrays(*tiny_arrays(), shuffle=True), 6),
        steps=STEPS,
    )
    kept = ("time/", "QueueInput")
    return {
        "seen": {name: inferencer.passes for name, inferencer in seen.items()},
        "scalars": [
            [step, name, repr(value)]
            for step, name, value in result.monitor.scalars
            if not name.startswith(kept)
        ],
        "weights": checksum(trainer),
    }


def checksum(trainer: Any) -> dict[str, str]:
    """Of every variable that a checkpoint would hold."""
    saved = trainer.store.saved().items()
    return {name: f"{zlib.crc32(np.asarray(v).tobytes()):08x}" for name, v in saved}

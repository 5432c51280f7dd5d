"""What ranks run in the tests of callbacks (see `tests.train.ranks_of_a_test`)."""

from __future__ import annotations

import itertools
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import towerpack.callbacks as room
from tests.callbacks.training import Keeper, Model, run
from tests.tiny_model import tiny_arrays
from towerpack.core.cluster import BEAT, PROGRESS, WAITING, progress, read_beat, this_cluster
from towerpack.core.every import Every
from towerpack.dataflow import BatchData, DataFromArrays, DataFromGenerator, MapData
from towerpack.input_source import QueueInput
from towerpack.monitor.rank_times import find_straggler
from towerpack.train.distributed import DistributedTrainerReplicated

EPOCHS, STEPS = 2, 5
PATIENCE_SECONDS = 60.0  # for what is a matter of milliseconds
SLOW_SECONDS = 0.3  # of each step of the straggler


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
    ran: dict[str, int] = {}
    ema = room.EMA(0.5)
    runners = [
        room.InferenceRunner(SETS[name](), [seen[name], room.ScalarStats("cost", name)])
        for name in SETS
    ]
    for name, runner in zip(SETS, runners, strict=True):
        count_outputs(runner, name, ran)
    runners += [
        room.DataParallelInferenceRunner(flow(7), room.ScalarStats("cost", "towers"), 2),
        room.InferenceRunner(flow(7), room.ClassificationError(summary_name="averaged"), ema=ema),
        room.InferenceRunner(flow(7), room.KerasMetric("accuracy")),
        room.TrainingMetric("accuracy"),
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
        "ran": ran,
    }


def count_outputs(runner: Any, name: str, ran: dict[str, int]) -> None:
    """Counts the batches that the tower runs here."""
    outputs = runner._outputs
    ran[name] = 0

    def counting(batches: Any) -> Any:
        for values in outputs(batches):
            ran[name] += 1
            yield values

    runner._outputs = counting


def checksum(trainer: Any) -> dict[str, str]:
    """Of every variable that a checkpoint would hold."""
    saved = trainer.store.saved().items()
    return {name: f"{zlib.crc32(np.asarray(v).tobytes()):08x}" for name, v in saved}


def keras(argument: dict[str, int]) -> dict[str, Any]:
    """Trains a Keras model and validates it on sets of several lengths."""
    import tensorflow as tf

    from tests.callbacks.training import Kept
    from towerpack.keras import KerasModel

    def network(x: Any) -> Any:
        x = tf.keras.layers.BatchNormalization(momentum=0.5)(x)
        return tf.keras.layers.Dense(3, activation="softmax")(x)

    found = {}
    for batch in (7, 60):
        tf.keras.utils.set_random_seed(3)
        inputs = [tf.TensorSpec([None, 4], tf.float32, "x")]
        targets = [tf.TensorSpec([None], tf.int32, "label")]
        trainer = DistributedTrainerReplicated(argument["towers"], steps_per_call=2)
        model = KerasModel(network, inputs, targets, flow(6), trainer)
        model.compile("sgd", "sparse_categorical_crossentropy", ["accuracy"])
        kept = Kept()
        model.fit(flow(batch), max_epoch=2, steps_per_epoch=3, monitors=[kept])
        names = ("total_loss", "accuracy", "validation_total_loss", "validation_accuracy")
        found[str(batch)] = {name: kept.of(name) for name in names}
    return found


def law(argument: dict[str, int]) -> dict[str, Any]:
    """Trains with an example of every callback at once, and resumes from the chief's state."""
    from tests.callbacks.examples import EXAMPLES
    from towerpack.core import logger

    logger.set_logger_dir("run", action="k")
    # Two profilers cannot record at once.
    names = [name for name in EXAMPLES if name != "GraphProfiler"]
    everything = [room.MovingAverageSummary(), *(EXAMPLES[name].make() for name in names)]
    keeper = Keeper(7)
    trainer = DistributedTrainerReplicated(argument["towers"], steps_per_call=4)
    batches = BatchData(DataFromArrays(*tiny_arrays(), shuffle=True), 5)
    options: dict[str, Any] = {"flow": batches, "steps": 6}
    run(everything, 2, trainer=trainer, keeper=keeper, **options)
    found = {"step": trainer.global_step, "weights": checksum(trainer)}

    (middle, *_) = [saved for saved in keeper.saved if saved.step == 7]
    middle.state = trainer.ranks.from_chief(middle.state)
    trainer = DistributedTrainerReplicated(argument["towers"], steps_per_call=4)
    everything = [room.MovingAverageSummary(), *(EXAMPLES[name].make() for name in names)]
    run(everything, 2, trainer=trainer, resume=middle, **options)
    return {**found, "resumed": checksum(trainer), "resumed_step": trainer.global_step}


class FromScalars(room.HyperParamSetter):
    """Of a user: its value comes from what only the chief knows."""

    def _get_value_to_set(self) -> Any:
        try:
            return 0.1 / (1 + self.trainer.monitors.get_latest("of_the_chief"))
        except KeyError:
            return None


class Attribute:
    value = 1.0


INTERVAL = Every(0.01, "seconds")


def decisions(argument: dict[str, int]) -> dict[str, Any]:
    """What only the chief can decide, and intervals of time, act on all ranks alike."""
    trainer = DistributedTrainerReplicated(argument["towers"], steps_per_call=2)
    attribute, triggered, moments = Attribute(), [], []
    put = room.CallbackFactory(
        trigger=lambda self: self.trainer.monitors.put_scalar("of_the_chief", self.epoch_num)
    )
    noting = room.CallbackFactory(trigger=lambda self: triggered.append(self.global_step))
    noting.set_chief_only(False)
    clock = room.CallbackFactory(trigger=lambda self: moments.append(trainer.ranks.now()))
    clock.set_chief_only(False)
    validate = room.InferenceRunner(flow(7), room.ScalarStats("cost", "timed"))
    result = run(
        [
            put,
            FromScalars("learning_rate"),
            FromScalars(room.ObjAttrParam(attribute, "value")),
            room.StatMonitorParamSetter(
                "learning_rate", "of_the_chief", lambda rate: rate / 2, threshold=9, last_k=2
            ),
            room.PeriodicTrigger(validate, every=INTERVAL),
            room.PeriodicTrigger(noting, every=INTERVAL),
            clock,
            room.EarlyStopping("of_the_chief", patience=3),
        ],
        9,
        trainer=trainer,
        flow=flow(6),
        steps=STEPS,
    )
    return {
        "rate": float(trainer.store["learning_rate"].numpy()),
        "attribute": attribute.value,
        "epochs": trainer.epoch_num,
        "triggered": triggered,
        "moments": moments,
        "timed": len(result.monitor.of("timed_cost")),
        "weights": checksum(trainer),
    }


def straggler(argument: dict[str, int]) -> list[Any]:
    """Rank 1 is slow; the times of each epoch as the monitors get them."""
    import tensorflow as tf

    from tests.callbacks.training import Kept

    seen = []

    class Times(Kept):
        def process_times(self, times: Any, verdict: str, step: int, epoch: int) -> None:
            slow = find_straggler(times.ranks)
            seen.append([slow.rank, slow.host, len(times.ranks), sorted(times.rank_scalars())])

    steps = itertools.count()

    def pause(x: Any) -> Any:
        """Rank 1 comes to the exchange of a step long after rank 0."""
        arrived = Path(f"arrived-{next(steps)}")
        if this_cluster().rank == 0:
            arrived.touch()
            return x
        while not arrived.exists():
            time.sleep(0.01)
        time.sleep(SLOW_SECONDS)
        return x

    class SlowModel(Model):
        def build_graph(self, x: Any, label: Any) -> Any:
            slow = tf.ensure_shape(tf.numpy_function(pause, [x], tf.float32), x.shape)
            return super().build_graph(slow, label)

    trainer = DistributedTrainerReplicated(argument["towers"], steps_per_call=2)
    model = SlowModel()
    trainer.setup_graph(
        model.input_signature, QueueInput(flow(6)), model.build_graph, model.optimizer
    )
    with trainer:
        trainer.train([], [Times()], steps_per_epoch=STEPS, max_epoch=2)
    return seen


class Watching(room.Inferencer):
    """Waits until the launcher would see that rank 1 waits."""

    def __init__(self) -> None:
        self.found: list[bool] = []

    def _get_fetches(self) -> list[str]:
        return ["cost"]

    def _on_fetches(self, values: list[Any]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        waits = False
        while not waits and time.monotonic() < deadline:
            time.sleep(0.02)
            beat = read_beat(Path("beats-1"))
            waits = beat is not None and beat[0] == WAITING
        self.found.append(waits)


def waiting(argument: dict[str, int]) -> dict[str, Any]:
    """The chief evaluates alone, which may take longer than a launcher waits for progress."""
    rank = this_cluster().rank
    Path(f"beats-{rank}").write_bytes(bytes(BEAT.size))
    progress.__init__({PROGRESS: f"beats-{rank}"})  # as the launcher would have it
    watching = Watching()
    trainer = DistributedTrainerReplicated(argument["towers"])
    run([room.InferenceRunner(generated(30), watching)], 1, trainer=trainer, flow=flow(6), steps=4)
    return {"found": watching.found, "last": read_beat(Path(f"beats-{rank}"))[0]}


def all_on_ranks(argument: dict[str, int]) -> dict[str, Any]:
    """Every case, in one cluster, since it takes seconds to start one."""
    cases = (validation, keras, law, decisions, straggler, waiting)
    return {case.__name__: case(argument) for case in cases}


def reference(argument: dict[str, int]) -> dict[str, Any]:
    """The cases whose results are those of one process."""
    return {case.__name__: case(argument) for case in (validation, keras)}

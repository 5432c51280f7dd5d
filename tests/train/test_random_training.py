"""Ordinary training runs, drawn at random, equal a bare loop in plain TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import numpy as np
import pytest

from towerpack import dataflow as df
from towerpack import optimizer
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import (
    Callback,
    InferenceRunner,
    ModelSaver,
    ScalarStats,
    ScheduledHyperParamSetter,
)
from towerpack.core import logger
from towerpack.input_source import (
    BatchQueueInput,
    FeedInput,
    QueueInput,
    StagingInput,
    TFDatasetInput,
)
from towerpack.models import GRU, LSTM, BatchNorm, Conv2D, FullyConnected, ModelDesc
from towerpack.tower import get_current_tower_context
from towerpack.train import (
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated,
    TrainConfig,
    autotune,
    launch_train_with_config,
)

CLASSES, WORDS = 3, 20
MEMORY = 0.98  # how much of the batches before counts in the digest of all
MOST_VALUES = 10_000_000  # in all batches of an epoch, so that a run takes seconds

# The shape of a sample by kind of model; images and sequences are small in their other sizes.
SHAPES = {
    "linear": lambda width: (width,),
    "mlp": lambda width: (width,),
    "deep": lambda width: (width,),
    "normalized": lambda width: (width,),
    "conv": lambda width: (6, 5, 1 + width % 4),
    "lstm": lambda width: (4, 1 + width % 9),
    "gru": lambda width: (4, 1 + width % 9),
    "embedding": lambda width: (5,),
}
OPTIMIZERS = {
    "sgd": lambda rate: optimizer.SGD(rate),
    "momentum": lambda rate: optimizer.Momentum(rate),
    "adam": lambda rate: optimizer.Adam(rate),
    "v1 momentum": lambda rate: v1.train.MomentumOptimizer(rate_variable(rate), 0.9),
    "keras momentum": lambda rate: tf.keras.optimizers.SGD(rate, momentum=0.9),
}
TRAINERS = {
    "simple": SimpleTrainer,
    "shared on the cpu": lambda **options: SyncMultiGPUTrainer(2, **options),
    "shared": lambda **options: SyncMultiGPUTrainerParameterServer(2, **options),
    "replicated": lambda **options: SyncMultiGPUTrainerReplicated(2, **options),
}
WAYS = {
    "auto": {},
    "one by one": {"steps_per_call": 1},
    "seven": {"steps_per_call": 7},
    "not compiled": {"jit": False},
    "compiled": {"jit": True},
    "eager": {"eager": True},
}
STAGES = (
    "none", "map", "cache", "repeat", "threads", "processes before", "processes after",
    "runner", "runner over map", "map and batch",
)  # fmt: skip
SOURCES = ("flow", "short queue", "feed", "staging", "batch queue", "dataset")
CALLBACKS = ("watch", "save", "infer", "schedule")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One configuration; its repr is what a failure reports."""

    kind: str
    width: int
    optimizer: str
    batch: int
    samples: int
    remainder: bool
    shuffle: bool
    stage: str
    source: str
    trainer: str
    way: str
    quick_trials: bool
    steps_per_epoch: int | None
    epochs: int
    defaults: bool
    callbacks: tuple[str, ...]
    watch_every: int

    @property
    def towers(self) -> int:
        return 1 if self.trainer == "simple" else 2

    @property
    def rate(self) -> float:
        return 0.003 if self.optimizer == "adam" else 0.02

    def rate_in(self, epoch: int) -> float:
        """Epochs count from 1; the schedule of `extra_callbacks` says the same."""
        return self.rate / 2 if "schedule" in self.callbacks and epoch > 1 else self.rate


def draw(seed: int) -> Drawn:
    rng = random.Random(seed)
    kind, source = rng.choice(list(SHAPES)), rng.choice(SOURCES)
    simple = rng.random() < 0.7 or kind == "normalized" or source == "feed"
    trainer = "simple" if simple else rng.choice(list(TRAINERS)[1:])
    ways = [way for way in WAYS if way != "compiled" or simple]
    way = rng.choice([*ways, "auto", "compiled" if simple else "auto"])
    batch, width = int(1000 ** rng.random()), int(300 ** rng.random())
    remainder = rng.random() < 0.5
    if kind == "normalized":  # the statistics of a few samples magnify rounding
        batch, remainder = max(batch, 16), False
    samples = rng.randint(1 if remainder else batch, batch * rng.randint(1, 40))
    values = batch * int(np.prod(SHAPES[kind](width))) * (1 if simple else 2)
    most = max(1, min(20 if way == "eager" else 100, MOST_VALUES // values))
    steps = rng.choice([None, rng.randint(1, most), most])
    if -(-samples // batch) > most:
        steps = steps or most
    shuffle = rng.random() < 0.4 and source != "dataset"
    # Where a gradient is zero but for rounding, Adam makes whole steps of it; TensorFlow 1's
    # momentum changes only those rows of a table that a batch has used.
    unlike = [("normalized", "adam"), ("embedding", "v1 momentum")]
    optimizers = [name for name in OPTIMIZERS if (kind, name) not in unlike]
    callbacks = [name for name in CALLBACKS if rng.random() < 0.3]
    if way == "eager":  # there are no names to fetch a tensor by
        callbacks = [name for name in callbacks if name != "watch"]
    return Drawn(
        kind,
        width,
        rng.choice(optimizers),
        batch,
        samples,
        remainder,
        shuffle,
        rng.choice(STAGES) if source not in ("dataset", "batch queue") else "none",
        source,
        trainer,
        way,
        rng.random() < 0.7,
        steps,
        rng.randint(1, 3),
        rng.random() < 0.3,
        tuple(callbacks),
        rng.choice([1, 3, 10, 50]),
    )  # fmt: skip


def arrays(drawn: Drawn) -> tuple[np.ndarray, np.ndarray]:
    rng, shape = np.random.default_rng(drawn.width), SHAPES[drawn.kind](drawn.width)
    labels = rng.integers(0, CLASSES, drawn.samples).astype(np.int32)
    if drawn.kind == "embedding":
        return rng.integers(0, WORDS, (drawn.samples, *shape)).astype(np.int32), labels
    x = rng.normal(size=(drawn.samples, *shape)) + labels.reshape(-1, *(1 for _ in shape))
    return x.astype(np.float32), labels


class Model(ModelDesc):
    def __init__(self, drawn: Drawn):
        super().__init__()
        self.drawn = drawn

    def inputs(self) -> list[Any]:
        dtype = tf.int32 if self.drawn.kind == "embedding" else tf.float32
        shape = SHAPES[self.drawn.kind](self.drawn.width)
        return [tf.TensorSpec([None, *shape], dtype, "x"), tf.TensorSpec([None], tf.int32, "y")]

    def build_graph(self, x: Any, y: Any) -> Any:
        if get_current_tower_context().is_main_training_tower:
            # The weights hardly show two batches in the wrong order; this does.
            digest = v1.get_variable("digest", [], tf.float64, trainable=False)
            digest.assign(MEMORY * digest + tf.reduce_mean(tf.cast(x, tf.float64)))
        return cost_of(FullyConnected("out", self.features(x), CLASSES), y)

    def features(self, x: Any) -> Any:
        kind, width = self.drawn.kind, self.drawn.width
        if kind in ("mlp", "deep", "normalized"):
            for layer in range(3 if kind == "deep" else 1):
                x = FullyConnected(f"fc{layer}", x, width)
                x = tf.nn.tanh(BatchNorm("bn", x) if kind == "normalized" else x)
        elif kind == "conv":
            x = tf.reduce_mean(tf.nn.tanh(Conv2D("conv", x, 1 + width % 8, 3)), [1, 2])
        elif kind in ("lstm", "gru"):
            layer = LSTM if kind == "lstm" else GRU
            x = layer("rnn", x, 1 + width % 20, return_sequences=width % 2 == 0)
            x = x[:, -1] if width % 2 == 0 else x
        elif kind == "embedding":
            table = v1.get_variable("table", [WORDS, 1 + width % 20])
            x = tf.reduce_sum(tf.gather(table, x), 1)
        return x

    def optimizer(self) -> Any:
        return OPTIMIZERS[self.drawn.optimizer](self.drawn.rate)


def rate_variable(rate: float) -> Any:
    return v1.get_variable("learning_rate", initializer=rate, trainable=False)


def cost_of(logits: Any, y: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses, name="cost")


def plain_features(kind: str, w: dict[str, Any], x: Any) -> Any:
    """What `Model.features` computes, written with TensorFlow alone."""
    if kind in ("mlp", "deep", "normalized"):
        for layer in range(3 if kind == "deep" else 1):
            x = x @ w[f"fc{layer}/W"] + w[f"fc{layer}/b"]
            if kind == "normalized":
                mean, variance = tf.nn.moments(x, 0)
                x = (x - mean) / tf.sqrt(variance + 1e-5) * w["bn/gamma"] + w["bn/beta"]
            x = tf.nn.tanh(x)
    elif kind == "conv":
        x = tf.nn.tanh(tf.nn.conv2d(x, w["conv/W"], 1, "SAME") + w["conv/b"])
        x = tf.reduce_mean(x, [1, 2])
    elif kind == "lstm":
        h = c = tf.zeros([tf.shape(x)[0], w["rnn/U"].shape[0]])
        for time in range(x.shape[1]):
            gates = x[:, time] @ w["rnn/W"] + h @ w["rnn/U"] + w["rnn/b"]
            i, f, new, o = tf.split(gates, 4, 1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(new)
            h = tf.sigmoid(o) * tf.tanh(c)
        x = h
    elif kind == "gru":
        h = tf.zeros([tf.shape(x)[0], w["rnn/U"].shape[0]])
        for time in range(x.shape[1]):
            z, r, new = tf.split(x[:, time] @ w["rnn/W"] + w["rnn/b"][0], 3, 1)
            z_h, r_h, new_h = tf.split(h @ w["rnn/U"] + w["rnn/b"][1], 3, 1)
            z = tf.sigmoid(z + z_h)
            h = z * h + (1 - z) * tf.tanh(new + tf.sigmoid(r + r_h) * new_h)
        x = h
    elif kind == "embedding":
        x = tf.reduce_sum(tf.nn.embedding_lookup(tf.convert_to_tensor(w["table"]), x), 1)
    return x


def source_of(drawn: Drawn, flow: Any) -> Any:
    if drawn.source == "short queue":
        return QueueInput(flow, queue_size=3)
    if drawn.source == "feed":
        return FeedInput(flow)
    if drawn.source == "staging":
        return StagingInput(QueueInput(flow))
    if drawn.source == "batch queue":
        return BatchQueueInput(flow.ds, drawn.batch)
    if drawn.source == "dataset":
        dataset = tf.data.Dataset.from_tensor_slices(arrays(drawn))
        return TFDatasetInput(dataset.batch(drawn.batch, drop_remainder=not drawn.remainder))
    return flow


def flow_of(drawn: Drawn) -> Any:
    def same(datapoint: Any) -> Any:  # a nested function travels to workers by value
        return [component * 1 for component in datapoint]

    rows = df.DataFromArrays(*arrays(drawn), shuffle=drawn.shuffle, seed=5)

    def batched(flow: Any) -> Any:
        return df.BatchData(flow, drawn.batch, remainder=drawn.remainder)

    return {
        "none": lambda: batched(rows),
        "map": lambda: df.MapData(batched(rows), same),
        "cache": lambda: batched(df.CacheData(rows)),
        "repeat": lambda: df.RepeatedData(batched(rows), 1),
        "threads": lambda: batched(df.MultiThreadMapData(rows, 2, same)),
        "processes before": lambda: batched(df.MultiProcessMapData(rows, 2, same)),
        "processes after": lambda: df.MultiProcessMapData(batched(rows), 2, same),
        "runner": lambda: df.MultiProcessRunner(batched(rows), 4, 2),
        "runner over map": lambda: df.MultiProcessRunner(df.MapData(batched(rows), same), 8, 1),
        "map and batch": lambda: df.MultiProcessMapAndBatchData(
            rows, 2, same, drawn.batch, remainder=drawn.remainder
        ),
    }[drawn.stage]()


def plain_batches(drawn: Drawn) -> Any:
    """The batches of all epochs, by numpy; only the order of a shuffled epoch is the source's."""
    x, y = arrays(drawn)
    rows = df.DataFromArrays(np.arange(drawn.samples), shuffle=drawn.shuffle, seed=5)
    left: list[int] = []
    # A cache keeps the order of the first epoch.
    for epoch in itertools.count() if drawn.stage != "cache" else itertools.repeat(0):
        left += [int(index) for (index,) in rows.iterate(epoch)]
        while len(left) >= drawn.batch:
            chosen, left = left[: drawn.batch], left[drawn.batch :]
            yield x[chosen], y[chosen]
        if drawn.source != "batch queue":
            if left and drawn.remainder:
                yield x[left], y[left]
            left = []


class Witness(Callback):
    """Keeps the weights and the digest before training, and the cost of each step it watches."""

    def __init__(self, every: int | None):
        self.every, self.costs = every, {}
        self.initial: dict[str, np.ndarray] = {}

    def _before_train(self) -> None:
        self.initial = weights_of(self.trainer)

    def _next_due(self) -> int | None:
        return None if self.every is None else (self.global_step // self.every + 1) * self.every

    def _before_run(self) -> list[str] | None:
        return ["cost"] if self.every is not None else None

    def _after_run(self, values: Any) -> None:
        self.costs[self.global_step] = float(values[0])


def weights_of(trainer: Any) -> dict[str, np.ndarray]:
    weights = {"digest": trainer.store["digest"], **trainer.store.trainable()}
    return {name: variable.numpy() for name, variable in weights.items()}


def bare_loop(
    drawn: Drawn, initial: dict[str, np.ndarray], steps_per_epoch: int
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Trains on the same batches in plain TensorFlow: the weights, and the cost of each step."""
    weights = {name: tf.Variable(value) for name, value in initial.items() if name != "digest"}
    first = {name: tf.Variable(tf.zeros_like(value)) for name, value in weights.items()}
    second = {name: tf.Variable(tf.zeros_like(value)) for name, value in weights.items()}
    specs = Model(drawn).inputs()

    @tf.function(input_signature=[tf.TensorSpec([]), tf.TensorSpec([]), *specs])
    def step(rate: Any, number: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = plain_features(drawn.kind, weights, x)
            cost = cost_of(hidden @ weights["out/W"] + weights["out/b"], y)
        for name, gradient in tape.gradient(cost, weights).items():
            gradient, m, v = tf.convert_to_tensor(gradient), first[name], second[name]
            if drawn.optimizer == "sgd":
                weights[name].assign_sub(rate * gradient)
            elif drawn.optimizer == "adam":
                m.assign(0.9 * m + 0.1 * gradient)
                v.assign(0.999 * v + 0.001 * gradient**2)
                unbiased = tf.sqrt(1 - 0.999**number) / (1 - 0.9**number)
                weights[name].assign_sub(rate * unbiased * m / (tf.sqrt(v) + 1e-8))
            elif drawn.optimizer == "keras momentum":
                weights[name].assign_add(m.assign(0.9 * m - rate * gradient))
            else:
                weights[name].assign_sub(rate * m.assign(0.9 * m + gradient))
        return cost

    batches, costs, digest = plain_batches(drawn), [], initial["digest"]
    for number in range(1, drawn.epochs * steps_per_epoch + 1):
        taken = [next(batches) for _ in range(drawn.towers)]
        digest = MEMORY * digest + taken[0][0].mean(dtype=np.float64)
        x, y = (np.concatenate(part) for part in zip(*taken, strict=True))
        rate = drawn.rate_in(1 + (number - 1) // steps_per_epoch)
        costs.append(float(step(rate, float(number), x, y)))
    trained = {name: variable.numpy() for name, variable in weights.items()}
    return {"digest": digest, **trained}, costs


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw(seed)
    try:
        with monkeypatch.context() as patch:
            if drawn.quick_trials:  # all ways of running come into use in a short run
                patch.setattr(autotune, "WINDOW_SECONDS", 0.001)
            _check(drawn)
    except BaseException as error:
        error.add_note(f"seed {seed}: {drawn}")
        raise


def _check(drawn: Drawn) -> None:
    tf.keras.utils.set_random_seed(7)
    flow = flow_of(drawn)
    witness = Witness(drawn.watch_every if "watch" in drawn.callbacks else None)
    callbacks: list[Callback] = [witness]
    logger.set_logger_dir("run", action="d")
    if "save" in drawn.callbacks:
        callbacks.append(ModelSaver())
    if "infer" in drawn.callbacks:
        callbacks.append(InferenceRunner(flow_of(drawn), ScalarStats("cost")))
    if "schedule" in drawn.callbacks:
        schedule = [(0, drawn.rate), (1, drawn.rate / 2)]
        callbacks.append(ScheduledHyperParamSetter("learning_rate", schedule))
    trainer = TRAINERS[drawn.trainer](**WAYS[drawn.way])
    launch_train_with_config(
        TrainConfig(
            model=Model(drawn),
            data=source_of(drawn, flow),
            callbacks=callbacks,
            steps_per_epoch=drawn.steps_per_epoch,
            max_epoch=drawn.epochs,
            **({} if drawn.defaults else {"extra_callbacks": [], "monitors": []}),
        ),
        trainer,
    )
    if drawn.steps_per_epoch is not None:
        assert trainer.steps_per_epoch == drawn.steps_per_epoch
    elif drawn.towers == 1:
        whole, rest = divmod(drawn.samples, drawn.batch)
        full_only = drawn.source == "batch queue" or not drawn.remainder
        assert trainer.steps_per_epoch == whole + (rest > 0 and not full_only)
    assert trainer.global_step == drawn.epochs * trainer.steps_per_epoch
    expected, costs = bare_loop(drawn, witness.initial, trainer.steps_per_epoch)
    trained = weights_of(trainer)
    assert trained.keys() == expected.keys()
    np.testing.assert_allclose(trained.pop("digest"), expected.pop("digest"), rtol=1e-9)
    for name, value in expected.items():
        np.testing.assert_allclose(trained[name], value, atol=2e-4, rtol=1e-3, err_msg=name)
    if "watch" in drawn.callbacks:
        due = range(drawn.watch_every, trainer.global_step + 1, drawn.watch_every)
        assert set(due) <= set(witness.costs)
    if drawn.towers == 1:
        for step, cost in witness.costs.items():
            np.testing.assert_allclose(cost, costs[step - 1], atol=1e-4, rtol=1e-3)


# Chosen to be quick, and to differ in model, source, stage, trainer and way of running.
FEW = (2, 5, 6, 8, 9, 22, 42, 121)


@pytest.mark.parametrize("seed", FEW)
def test_a_drawn_training_equals_a_bare_loop(seed, monkeypatch):
    check(seed, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2000))
def test_thousands_of_drawn_trainings_equal_a_bare_loop(seed, monkeypatch):
    check(seed, monkeypatch)

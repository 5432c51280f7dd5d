"""Models to train by Keras and by towerpack, on the same batches from the same start."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import towerpack
from towerpack._tensorflow import tf

keras = tf.keras
layers, ops = keras.layers, keras.ops

SAMPLES, BATCH, EPOCHS = 22, 4, 2  # the last batch is smaller
rng = np.random.default_rng(0)
X = rng.normal(size=(SAMPLES, 4)).astype("float32")
X2 = rng.normal(size=(SAMPLES, 3)).astype("float32")
LABELS = X[:, :3].argmax(1)
Y1 = X.sum(1, keepdims=True)
WEIGHTS = rng.uniform(0.2, 2, SAMPLES).astype("float32")
TOKENS = rng.integers(0, 5, size=(SAMPLES, 6))  # 0 is masked
STATEFUL = rng.normal(size=(SAMPLES // BATCH * BATCH, 5, 2)).astype("float32")


@dataclass
class Case:
    """A function that makes a compiled model, what it is trained on, and options of `fit`."""

    make: object
    x: object = None
    y: object = None
    options: dict = field(default_factory=dict)
    policy: str = "float32"


def hidden(x, **options):
    return layers.Dense(6, "tanh", **options)(x)


def classifier(middle=(), optimizer="adam", last=None, metrics=("accuracy",), **compiled):
    model = keras.Sequential(
        [
            layers.Dense(6, "tanh"),
            *middle,
            layers.Dense(3, "softmax", dtype="float32", **last or {}),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(optimizer, loss, metrics=list(metrics), **compiled)
    return model


def two_of_each(**compiled):
    a, b = keras.Input([4], name="a"), keras.Input([3], name="b")
    together = hidden(layers.Concatenate()([a, b]))
    outputs = {
        "total": layers.Dense(1, name="total")(together),
        "label": layers.Dense(3, activation="softmax", name="label")(hidden(a)),
    }
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        {"total": "mse", "label": "sparse_categorical_crossentropy"},
        loss_weights={"total": 0.3, "label": 2.0},
        metrics={"total": ["mae"], "label": ["accuracy"]},
        weighted_metrics={"total": ["mse"], "label": []},
    )
    return model


class Subclassed(keras.Model):
    """Makes its weights when it is called, in plain TensorFlow where Keras has no tensors."""

    def __init__(self):
        super().__init__()
        self.last, self.first = layers.Dense(1), layers.Dense(6, "tanh")

    def call(self, x, training=False):
        hidden = self.first(x)
        self.add_loss(0.01 * tf.reduce_sum(hidden**2))
        return self.last(tf.nn.dropout(hidden, 0.0) if training else hidden)


def subclassed():
    model = Subclassed()
    model.compile(keras.optimizers.RMSprop(0.01), "mse", metrics=["mae"])
    return model


class OwnStep(Subclassed):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "twice": 2 * logs["loss"]}


class OwnLoss(Subclassed):
    """Computes its loss itself, and keeps another in a metric of its own."""

    def __init__(self):
        super().__init__()
        self.cubes = keras.metrics.Mean(name="cubes")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        self.cubes.update_state(ops.mean(ops.abs(y - y_pred) ** 3))
        return ops.mean((y - y_pred) ** 4) + sum(self.losses)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "cubes": self.cubes.result()}


def of_class(cls):
    def make():
        model = cls()
        model.compile("adam", "mse", metrics=["mae"])
        return model

    return make


def frozen():
    x = keras.Input([4])
    base = keras.Model(x, layers.BatchNormalization()(hidden(x)), name="base")
    base.trainable = False
    model = keras.Model(x, layers.Dense(1)(base(x)))
    model.compile("sgd", "mse")
    return model


def penalized():
    x = keras.Input([4])
    h = hidden(x, kernel_regularizer="l2", activity_regularizer="l1")
    h = layers.ActivityRegularization(l2=0.01)(layers.GaussianNoise(0.1)(h))
    model = keras.Model(x, layers.Dense(1, kernel_constraint=keras.constraints.MaxNorm(0.4))(h))
    model.compile(keras.optimizers.SGD(0.1, nesterov=True, momentum=0.8), "mae", metrics=["mse"])
    return model


def recurrent():
    x = keras.Input(batch_shape=(BATCH, 5, 2))
    model = keras.Model(x, layers.Dense(1)(layers.GRU(3, stateful=True)(x)))
    model.compile("adam", "mse")
    return model


def masked():
    x = keras.Input([6], dtype="int32")
    h = layers.LSTM(4, return_sequences=True)(layers.Embedding(5, 3, mask_zero=True)(x))
    model = keras.Model(x, layers.Dense(5, activation="softmax")(h))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def autoencoder():
    class Own(layers.Layer):
        def call(self, inputs):
            x, again = inputs
            self.add_loss(ops.mean((x - again) ** 2))
            return again

    x = keras.Input([4])
    model = keras.Model(x, Own()([x, layers.Dense(4)(hidden(x))]))
    model.compile("adam")
    return model


def binary():
    model = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(1, "sigmoid")])
    kinds = keras.metrics
    model.compile(
        "adam",
        "binary_crossentropy",
        metrics=[kinds.AUC(), kinds.Precision(), kinds.MeanSquaredError()],
        weighted_metrics=[kinds.AUC(name="auc_weighted"), "accuracy"],
    )
    return model


def text():
    words = layers.TextVectorization(vocabulary=["a", "b", "c"], output_mode="multi_hot")
    model = keras.Sequential([keras.Input([1], dtype="string"), words, layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def sgd(**options):
    return lambda: classifier(optimizer=keras.optimizers.SGD(0.1, momentum=0.9, **options))


def schedule():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.7)
    return classifier(optimizer=keras.optimizers.Adam(rate))


BN_DROPOUT = (layers.BatchNormalization, lambda: layers.Dropout(0.4))
AB = {"a": X, "b": X2}
BOTH = {"total": Y1, "label": LABELS}

CASES = {
    "sequential": Case(lambda: classifier([make() for make in BN_DROPOUT]), X, LABELS),
    "two of each": Case(two_of_each, AB, BOTH),
    "weights of outputs": Case(
        two_of_each, AB, BOTH, {"sample_weight": {"total": WEIGHTS, "label": WEIGHTS**2}}
    ),
    "one weight": Case(two_of_each, AB, BOTH, {"sample_weight": WEIGHTS}),
    "subclassed": Case(subclassed, X, Y1),
    "own train_step": Case(of_class(OwnStep), X, Y1),
    "own compute_loss": Case(of_class(OwnLoss), X, Y1),
    "frozen": Case(frozen, X, Y1),
    "penalized": Case(penalized, X, Y1),
    "stateful": Case(recurrent, STATEFUL, STATEFUL.sum((1, 2)), {"validation_split": 0.0}),
    "masked": Case(masked, TOKENS, np.roll(TOKENS, 1, 1)),
    "add_loss alone": Case(autoencoder, X),
    "metrics with state": Case(binary, X, LABELS[:, None] > 0, {"sample_weight": WEIGHTS}),
    "class_weight": Case(classifier, X, LABELS, {"class_weight": {0: 3.0, 2: 0.1}}),
    "text": Case(text, tf.constant([["a"], ["b c"]] * 11), Y1),
    "schedule": Case(schedule, X, LABELS),
    "clipnorm": Case(sgd(clipnorm=0.1), X, LABELS),
    "global_clipnorm": Case(sgd(global_clipnorm=0.1, weight_decay=0.01), X, LABELS),
    "use_ema": Case(sgd(use_ema=True, ema_momentum=0.8), X, LABELS),
    "ema overwrites": Case(sgd(use_ema=True, ema_overwrite_frequency=4), X, LABELS),
    "accumulation": Case(sgd(gradient_accumulation_steps=2), X, LABELS),
    "mixed_float16": Case(classifier, X, LABELS, policy="mixed_float16"),
    "mixed_bfloat16": Case(classifier, X, LABELS, policy="mixed_bfloat16"),
    "steps_per_execution": Case(lambda: classifier(steps_per_execution=3), X, LABELS),
    "run_eagerly": Case(lambda: classifier(run_eagerly=True), X, LABELS),
}


def started(case):
    """The model of a case, the same at each call."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_dtype_policy(case.policy)
    try:
        model = case.make()
        model.jit_compile = False  # XLA takes seconds for each model
        return model
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


DEFAULTS = {
    "batch_size": BATCH,
    "epochs": EPOCHS,
    "shuffle": False,
    "verbose": 0,
    "validation_split": 0.3,
}


def train(fit, case, **options):
    """The model after training, and its history; `fit` is Keras' or ours."""
    model = started(case)
    options = {**DEFAULTS, **case.options, **options}
    if "x" not in options:
        options |= {"x": case.x, "y": case.y}
    return model, fit(model, **options)


def by_keras(case, **options):
    return train(lambda model, **options: model.fit(**options), case, **options)


def by_us(case, **options):
    return train(towerpack.keras.fit, case, **options)


def assert_same(ours, theirs, atol=1e-5):
    """Compares two pairs of model and history: weights, states, optimizers, logs."""
    (model, history), (other, expected) = ours, theirs
    pairs = zip(model.variables, other.variables, strict=True)
    optimizers = zip(model.optimizer.variables, other.optimizer.variables, strict=True)
    for one, two in [*pairs, *optimizers]:
        np.testing.assert_allclose(
            np.asarray(one, "float64") if one.dtype != "string" else 0,
            np.asarray(two, "float64") if two.dtype != "string" else 0,
            atol=atol, rtol=1e-4, err_msg=one.path,
        )  # fmt: skip
    assert history.epoch == expected.epoch
    assert history.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(
            history.history[name], values, atol=atol, rtol=1e-4, err_msg=name
        )


class Recorder(keras.callbacks.Callback):
    """Keeps every event with its logs; with `batches`, also those of single batches."""

    def __new__(cls, batches=True):
        kind = RecordsBatches if batches and cls is Recorder else cls
        return super().__new__(kind)

    def __init__(self, batches=True):
        super().__init__()
        self.events = []

    def record(self, event, number, logs):
        self.events.append((event, number, {k: round(v, 4) for k, v in (logs or {}).items()}))

    def on_train_begin(self, logs=None):
        self.record("begin", 0, logs)

    def on_train_end(self, logs=None):
        self.record("end", 0, logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.record("epoch begins", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.record("epoch ends", epoch, logs)

    def on_test_end(self, logs=None):
        self.record("test ends", 0, logs)


class RecordsBatches(Recorder):
    def on_train_batch_begin(self, batch, logs=None):
        self.record("batch begins", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.record("batch ends", batch, logs)


def at_epochs():
    kinds = keras.callbacks
    return [
        kinds.EarlyStopping("loss", patience=0, mode="max", restore_best_weights=True),
        kinds.ModelCheckpoint(
            "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
        ),
        kinds.CSVLogger("log.csv"),
        Recorder(batches=False),
    ]


def of_rates():
    kinds = keras.callbacks
    return [
        kinds.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate),
        kinds.ReduceLROnPlateau("loss", factor=0.3, patience=1, min_delta=100),
        kinds.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        Recorder(batches=False),
    ]


CALLBACKS = {
    "at epochs": at_epochs,
    "of rates": of_rates,
    "at batches": lambda: [Recorder()],
    "none": list,
}

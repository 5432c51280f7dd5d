"""Keras layers and models in a tower, beside the same trained by Keras' own `fit`."""

import numpy as np
import pytest

from towerpack import optimizer as own
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import ModelSummary
from towerpack.checkpoint import SmartInit, save_checkpoint_vars
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import QueueInput
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.tower import TowerContext, TowerFunc, TracedTower, VariableStore
from towerpack.tower.varreplace import freeze_variables, remap_variables
from towerpack.train import SimpleTrainer

keras = tf.keras
layers = keras.layers

BATCH, SAMPLES, EPOCHS = 8, 24, 3
SIGNATURE = [
    tf.TensorSpec([None, 4], tf.float32, "x"),
    tf.TensorSpec([None, 2], tf.float32, "y"),
]


def arrays(shape=(4,)):
    rng = np.random.default_rng(0)
    x = rng.normal(1, 2, size=(SAMPLES, *shape)).astype(np.float32)
    return x, rng.normal(size=(SAMPLES, 2)).astype(np.float32)


def square_error(y, output):
    return tf.reduce_mean((y - output) ** 2)


def train(network, optimizer=lambda: keras.optimizers.SGD(0.1), x_shape=(4,)):
    """Trains `network(x)` in a tower; returns the trainer, and the values it began with by name."""
    signature = [tf.TensorSpec([None, *x_shape], tf.float32, "x"), SIGNATURE[1]]
    data = BatchData(DataFromArrays(*arrays(x_shape), shuffle=False), BATCH)
    trainer = SimpleTrainer()
    with trainer:
        trainer.setup_graph(
            signature, QueueInput(data), lambda x, y: square_error(y, network(x)), optimizer
        )
        begin = {name: v.numpy() for name, v in trainer.store.variables.items()}
        trainer.train([], [], steps_per_epoch=SAMPLES // BATCH, max_epoch=EPOCHS)
    return trainer, begin


def fit(model, begin, optimizer=None, x_shape=(4,)):
    """Trains a model of the same layers by Keras, from the same values; its values by path."""
    for variable in model.variables:
        variable.assign(begin[variable.path])
    model.compile(optimizer or keras.optimizers.SGD(0.1), lambda y, p: tf.reduce_mean((y - p) ** 2))
    x, y = arrays(x_shape)
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    return {variable.path: variable.numpy() for variable in model.variables}


def assert_same(trainer, expected):
    assert expected
    for name, value in expected.items():
        np.testing.assert_allclose(trainer.store[name], value, atol=1e-5, err_msg=name)


def as_model(make):
    x = keras.Input([4])
    y = x
    for layer in make():
        y = layer(y)
    return keras.Model(x, y)


def inside(make):
    def network(x):
        for layer in make():
            x = layer(x)
        return x

    return network


def outside(make):
    made = make()

    def network(x):
        for layer in made:
            x = layer(x)
        return x

    return network


def model_outside(make):
    return as_model(make)


def model_inside(make):
    return lambda x: as_model(make)(x)


PLACES = pytest.mark.parametrize("place", [inside, outside, model_outside, model_inside])


def with_batch_norm():
    return [
        layers.Dense(5, name="a"),
        layers.BatchNormalization(name="bn", momentum=0.8),
        layers.Dense(2, name="b"),
    ]


@PLACES
def test_layers_without_a_training_argument_follow_the_tower(place):
    trainer, begin = train(place(with_batch_norm))
    assert np.all(begin["bn/moving_mean"] == 0)
    assert np.abs(trainer.store["bn/moving_mean"]).max() > 0.01
    assert_same(trainer, fit(as_model(with_batch_norm), begin))


@PLACES
@pytest.mark.parametrize("is_training", [True, False])
def test_dropout_drops_only_while_training(place, is_training):
    network = place(lambda: [layers.Dropout(0.5, seed=1)])
    assert dropped(network, is_training) == (is_training is True)


def dropped(network, is_training):
    store = VariableStore()

    @tf.function(autograph=False)
    def run(x):
        with TowerContext("", is_training=is_training, store=store):
            return network(x)

    return bool(np.any(run(tf.ones([3, 4])) == 0))


def test_a_training_argument_of_the_caller_wins_and_does_not_reach_the_next_layer():
    a, b = layers.Dropout(0.5), layers.Dropout(0.5)
    assert not dropped(lambda x: a(x, training=False), is_training=True)
    assert dropped(lambda x: b(a(x, training=False)), is_training=True)
    assert dropped(lambda x: a(x, training=True), is_training=False)
    assert not dropped(lambda x: b(x * 0 + tf.sign(a(x, training=True) + 1)), is_training=False)
    assert not dropped(lambda x: a(x, training=None), is_training=False)


def test_a_layer_of_layers_passes_the_mode_on():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dropout(0.5)

        def call(self, x):
            return self.inner(x)

    block = Block()
    assert dropped(lambda x: block(x), is_training=True)
    assert not dropped(lambda x: block(x), is_training=False)


def test_outside_of_towers_keras_decides_the_mode_itself():
    dropped(layers.Dropout(0.5), is_training=True)
    assert np.all(layers.Dropout(0.5)(tf.ones([9, 9])) == 1)


def test_losses_of_a_layer_are_those_of_its_latest_call():
    layer = layers.Dense(2, activity_regularizer=keras.regularizers.L2(1.0))
    for _ in range(2):
        dropped(layer, is_training=True)
        assert len(layer.losses) == 1


def frozen_by_argument():
    return [
        layers.Dense(5, name="a", trainable=False),
        layers.BatchNormalization(name="bn", trainable=False),
        layers.Dense(2, name="b"),
    ]


def frozen_after_building():
    made = with_batch_norm()
    made[0].build([None, 4])
    made[0].trainable = False
    return made


def frozen_before_building():
    made = with_batch_norm()
    made[0].trainable = False
    return made


@PLACES
@pytest.mark.parametrize(
    "make", [frozen_by_argument, frozen_after_building, frozen_before_building]
)
def test_frozen_layers_are_not_trained(place, make):
    trainer, begin = train(place(make))
    np.testing.assert_array_equal(trainer.store["a/kernel"], begin["a/kernel"])
    assert "a/kernel" not in trainer.store.trainable()
    assert np.abs(trainer.store["b/kernel"] - begin["b/kernel"]).max() > 0.01
    assert_same(trainer, fit(as_model(make), begin))


class FrozenByItself(layers.Layer):
    """Frozen before it has any layers, so that no variable knows."""

    def __init__(self):
        super().__init__(name="outer")
        self.trainable = False
        self.inner = layers.Dense(4, name="inner")

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


def test_a_layer_of_layers_is_frozen_as_a_whole():
    trainer, begin = train(inside(lambda: [FrozenByItself(), layers.Dense(2, name="b")]))
    assert list(trainer.store.trainable()) == ["b/kernel", "b/bias"]
    assert trainer.store.why_frozen(trainer.store["outer/inner/kernel"]) == "outer.trainable=False"
    np.testing.assert_array_equal(trainer.store["outer/inner/kernel"], begin["outer/inner/kernel"])


def test_a_change_of_trainable_counts_in_the_next_run_and_not_in_this_one():
    model = as_model(with_batch_norm)
    model.layers[1].trainable = False
    trainer, _ = train(model)
    assert len(trainer.store.trainable()) == 4
    model.layers[1].trainable = True
    assert len(trainer.store.trainable()) == 4
    again, begin = train(model)
    assert len(again.store.trainable()) == 6
    assert np.abs(again.store["a/kernel"] - begin["a/kernel"]).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_fine_tuning_a_model_of_keras_applications(frozen):
    shape = (32, 32, 3)

    def make():
        base = keras.applications.MobileNetV2(
            shape, alpha=0.35, include_top=False, weights=None, pooling="avg"
        )
        base.trainable = not frozen
        return base

    base, head = make(), layers.Dense(2, name="head")
    # A small rate: through 52 normalizations of small batches, rounding errors grow quickly.
    trainer, begin = train(lambda x: head(base(x)), lambda: keras.optimizers.SGD(1e-4), shape)
    means = [name for name in begin if name.endswith("moving_mean")]
    moved = [n for n in means if np.abs(trainer.store[n] - begin[n]).max() > 0]
    assert len(means) == 52
    assert len(moved) == (0 if frozen else 52)
    assert len(trainer.store.trainable()) == 2 + (0 if frozen else 156)

    x = keras.Input(shape)
    model = keras.Model(x, layers.Dense(2, name="head")(make()(x)))
    assert_same(trainer, fit(model, begin, keras.optimizers.SGD(1e-4), shape))


class Unnamed(tf.Module):
    """A module whose variables all have the name that TensorFlow gives to those without one."""

    def __init__(self):
        super().__init__()
        self.steps = tf.Variable(0.0, trainable=False)
        self.weight = tf.Variable(tf.ones([4, 2]))
        self.scale = tf.Variable(tf.ones([2]))
        self.shift = tf.Variable(tf.zeros([2]))

    def __call__(self, x):
        self.steps.assign_add(1)
        return (x @ self.weight) * self.scale + self.shift


def two_models_with_a_layer_of_the_same_name():
    x = keras.Input([4])
    first = keras.Model(x, layers.Dense(4, "tanh", name="fc")(x))
    second = keras.Model(x, layers.Dense(2, name="fc")(x))
    return lambda x: second(first(x)), lambda: [*first.variables, *second.variables]


def two_layers_of_the_same_name_built_in_the_tower():
    first, second = layers.Dense(4, "tanh", name="fc"), layers.Dense(2, name="fc")
    return lambda x: second(first(x)), lambda: [*first.variables, *second.variables]


def two_layers_of_the_same_name_made_in_the_tower():
    made = []

    def network(x):
        made[:] = [layers.Dense(4, "tanh", name="fc"), layers.Dense(2, name="fc")]
        return made[1](made[0](x))

    return network, lambda: [*made[0].variables, *made[1].variables]


def unnamed_module():
    module = Unnamed()
    return module, lambda: [module.steps, module.weight, module.scale, module.shift]


def unnamed_module_and_plain_variables():
    module = Unnamed()

    def network(x):
        x = module(x * tf.Variable(tf.ones([4])))
        return x + tf.Variable(tf.zeros([2]))

    return network, lambda: [module.steps, module.weight, module.scale, module.shift]


EQUAL_NAMES = pytest.mark.parametrize(
    "kind",
    [
        two_models_with_a_layer_of_the_same_name,
        two_layers_of_the_same_name_built_in_the_tower,
        two_layers_of_the_same_name_made_in_the_tower,
        unnamed_module,
        unnamed_module_and_plain_variables,
    ],
)


@EQUAL_NAMES
@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, v1.train.AdamOptimizer, own.Adam])
def test_variables_of_equal_names_are_all_trained_and_known_in_every_trace(kind, optimizer):
    network, variables = kind()
    trainer, begin = train(network, lambda: optimizer(0.1))
    for variable in variables():
        name = trainer.store.name_of(bare(variable))
        assert np.abs(bare(variable) - begin[name]).max() > 1e-2, name
    names = dict(trainer.store.variables)
    assert len({id(variable) for variable in names.values()}) == len(names)
    TracedTower(trainer.tower_func, trainer.store)
    assert trainer.store.variables == names


def bare(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable


@EQUAL_NAMES
def test_variables_of_equal_names_are_saved_and_restored(kind, tmp_path):
    network, variables = kind()
    trainer, _ = train(network)
    expected = [bare(variable).numpy() for variable in variables()]
    path = tmp_path / "weights.npz"
    save_checkpoint_vars({n: v.numpy() for n, v in trainer.store.saved().items()}, path)

    network, variables = kind()  # as another process would make them
    predict = OfflinePredictor(
        PredictConfig(
            tower_func=TowerFunc(lambda x: tf.identity(network(x), "out"), SIGNATURE[:1]),
            session_init=SmartInit(path),
            input_names=["x"],
            output_names=["out"],
        )
    )
    for variable, value in zip(variables(), expected, strict=True):
        np.testing.assert_array_equal(bare(variable), value)
    del predict


def test_equal_names_are_reported_once(caplog):
    network, _ = two_models_with_a_layer_of_the_same_name()
    trainer, _ = train(network)
    TracedTower(trainer.tower_func, trainer.store)
    (message,) = [r.getMessage() for r in caplog.records if "the same name" in r.getMessage()]
    assert "{'fc/kernel_1': 'fc/kernel', 'fc/bias_1': 'fc/bias'}" in message


def test_tensorflow_still_numbers_variables_in_the_order_in_which_they_are_made():
    made = [tf.Variable(float(i), trainable=i % 2 == 0) for i in range(9)]
    store = VariableStore()
    store.adopt_all(reversed(made))
    assert list(store.variables) == ["Variable", *(f"Variable_{i}" for i in range(1, 9))]
    assert [float(variable) for variable in store.variables.values()] == list(range(9))


def backbone():
    return [layers.Dense(4, "tanh", name="a"), layers.BatchNormalization(name="bn")]


@PLACES
@pytest.mark.parametrize("skip_collection", [False, True])
def test_freeze_variables_acts_on_keras_objects_wherever_they_are_made(place, skip_collection):
    base, head = place(backbone), layers.Dense(2, name="b")

    def network(x):
        with freeze_variables(skip_collection=skip_collection):
            x = base(x)
        return head(x)

    trainer, begin = train(network)
    for name in ["a/kernel", "a/bias", "bn/gamma", "bn/beta"]:
        np.testing.assert_array_equal(trainer.store[name], begin[name], err_msg=name)
        assert (name in trainer.store.trainable()) != skip_collection
    for name in ["bn/moving_mean", "b/kernel"]:
        assert np.abs(trainer.store[name] - begin[name]).max() > 1e-3, name


def test_a_model_that_is_frozen_in_one_of_two_calls_gets_the_gradient_of_the_other():
    layer = layers.Dense(2, use_bias=False, name="a")
    layer.build([None, 4])

    def gradient(network):
        store = VariableStore()

        @tf.function(autograph=False)
        def run(x):
            with TowerContext("", is_training=True, store=store), tf.GradientTape() as tape:
                cost = tf.reduce_sum(network(x))
            return tape.gradient(cost, store["a/kernel"])

        return run(tf.ones([3, 4]))

    def twice(x):
        with freeze_variables():
            y = layer(x)
        return layer(x) + y

    np.testing.assert_array_equal(gradient(twice), gradient(layer))


class MakesVariablesInItsCall(layers.Layer):
    """Keras does not know its variables: neither a plain one nor those of a new layer."""

    def __init__(self, make):
        super().__init__(name="outer")
        self.make = make

    def call(self, x):
        return self.make(x)


IN_CALLS = pytest.mark.parametrize(
    "make",
    [
        lambda x: x * tf.Variable(tf.ones([4]), name="scale"),
        lambda x: layers.Dense(2, name="scale")(x),
    ],
    ids=["variable", "layer"],
)


@IN_CALLS
def test_freezing_refuses_variables_that_a_layer_makes_in_its_call(make):
    def network(x):
        with freeze_variables():
            return MakesVariablesInItsCall(make)(x)

    with pytest.raises(ValueError, match="do not reach the variable .*add_weight"):
        outputs(network, VariableStore())

    def frozen_inside(x):
        with freeze_variables():
            return make(x)

    with pytest.raises(ValueError, match="do not reach the variable"):
        outputs(MakesVariablesInItsCall(frozen_inside), VariableStore())
    outputs(MakesVariablesInItsCall(make), VariableStore())


@IN_CALLS
def test_variables_that_a_layer_makes_in_its_call_can_be_frozen_altogether(make):
    head = layers.Dense(2, name="head")

    def network(x):
        with freeze_variables(skip_collection=True):
            x = MakesVariablesInItsCall(make)(x)
        return head(x)

    trainer, begin = train(network)
    assert list(trainer.store.trainable()) == ["head/kernel", "head/bias"]
    assert trainer.store.frozen()
    for name in trainer.store.frozen():
        np.testing.assert_array_equal(trainer.store[name], begin[name])


@PLACES
def test_remapped_variables_act_on_keras_objects_wherever_they_are_made(place):
    made = []

    def make():
        regularizer = keras.regularizers.L2(1.0)
        made.append(layers.Dense(2, name="a", activity_regularizer=regularizer))
        return made[-1:]

    network = place(make)

    def doubled(x):
        with remap_variables(lambda v: v * 2):
            return network(x)

    store = VariableStore()
    plain, twice = outputs(network, store), outputs(doubled, store)
    np.testing.assert_allclose(twice, plain * 2, rtol=1e-6)
    np.testing.assert_allclose(outputs(network, store), plain)
    assert sorted(store.variables) == ["a/bias", "a/kernel"]
    assert len(network.losses if place is model_outside else made[-1].losses) == 1


def outputs(network, store, is_training=True):
    @tf.function(autograph=False)
    def run(x):
        with TowerContext("", is_training=is_training, store=store):
            return network(x)

    return run(tf.ones([3, 4])).numpy()


class NonNegativeSmall(keras.constraints.Constraint):
    def __call__(self, w):
        return keras.ops.clip(w, 0.0, 0.3)


def constrained():
    return [
        layers.Dense(5, "tanh", name="a", kernel_constraint=NonNegativeSmall()),
        layers.Dense(2, name="b", bias_constraint=keras.constraints.NonNeg()),
    ]


RATE = 0.1
KINDS_OF_SGD = {
    "keras": lambda: keras.optimizers.SGD(RATE),
    "v1": lambda: v1.train.GradientDescentOptimizer(RATE),
    "towerpack": lambda: own.SGD(RATE),
    "accumulated": lambda: own.AccumGradOptimizer(own.SGD(RATE), 1),
}


@pytest.mark.parametrize("place", [inside, model_outside])
@pytest.mark.parametrize("kind", KINDS_OF_SGD)
def test_constraints_of_keras_layers_hold_with_every_kind_of_optimizer(place, kind):
    trainer, begin = train(place(constrained), KINDS_OF_SGD[kind])
    kernel = trainer.store["a/kernel"].numpy()
    assert begin["a/kernel"].min() < 0 <= kernel.min() <= kernel.max() <= np.float32(0.3)
    assert_same(trainer, fit(as_model(constrained), begin))


@pytest.mark.parametrize("kind", KINDS_OF_SGD)
def test_constraints_of_get_variable_hold_with_every_kind_of_optimizer(kind):
    def network(x):
        w = v1.get_variable("w", [4, 2], constraint=lambda w: tf.clip_by_value(w, 0.0, 0.3))
        return x @ w

    trainer, begin = train(network, KINDS_OF_SGD[kind])
    value = tf.Variable(begin["w"])
    x, y = arrays()
    for _ in range(EPOCHS):
        for start in range(0, SAMPLES, BATCH):
            with tf.GradientTape() as tape:
                cost = square_error(y[start : start + BATCH], x[start : start + BATCH] @ value)
            stepped = value - RATE * tape.gradient(cost, value)
            value.assign(tf.clip_by_value(stepped, 0.0, 0.3))
    np.testing.assert_allclose(trainer.store["w"], value, atol=1e-5)


def test_constraints_hold_where_gradients_are_sparse():
    table = layers.Embedding(6, 2, name="table", embeddings_constraint=NonNegativeSmall())

    def network(x):
        return tf.reduce_sum(table(tf.cast(tf.abs(x), tf.int32) % 6), axis=1)

    for make in KINDS_OF_SGD.values():
        trainer, _ = train(network, make)
        values = trainer.store["table/embeddings"].numpy()
        assert values.min() >= 0
        assert values.max() <= np.float32(0.3)


KERAS_OPTIMIZERS = {
    "Muon": lambda: keras.optimizers.Muon(0.01, exclude_layers=["b"]),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "AdamW": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "SGD with momentum": lambda: keras.optimizers.SGD(0.05, 0.9, use_ema=True),
    "accumulating": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=3),
}


def plain():
    return [layers.Dense(5, "tanh", name="a"), layers.Dense(2, name="b")]


@pytest.mark.parametrize("place", [inside, model_outside])
@pytest.mark.parametrize("kind", KERAS_OPTIMIZERS)
def test_optimizers_of_keras_find_what_they_need_in_variables(place, kind):
    make = KERAS_OPTIMIZERS[kind]
    trainer, begin = train(place(plain), make)
    expected = fit(as_model(plain), begin, make())
    assert_same(trainer, expected)


@pytest.mark.parametrize("kind", KERAS_OPTIMIZERS)
def test_optimizers_of_keras_train_variables_that_are_not_of_keras(kind):
    def network(x):
        with v1.variable_scope("a"):
            x = tf.tanh(x @ v1.get_variable("kernel", [4, 5]) + v1.get_variable("bias", [5]))
        with v1.variable_scope("b"):
            return x @ v1.get_variable("kernel", [5, 2]) + v1.get_variable("bias", [2])

    make = KERAS_OPTIMIZERS[kind]
    trainer, begin = train(network, make)
    assert_same(trainer, fit(as_model(plain), begin, make()))
    names = list(trainer.store.variables)
    assert len({id(variable) for variable in trainer.store.variables.values()}) == len(names)
    assert not [name for name in names if ":" in name or name.endswith("_0_momentum")]


def test_the_table_of_the_model_lists_frozen_parameters_with_the_reason():
    trainer, _ = train(inside(frozen_by_argument))
    summary = ModelSummary()
    summary.trainer = trainer
    rows = {row.name: row for row in summary.table().rows}
    assert (rows["a"].parameters, rows["a"].trainable) == (25, 0)
    assert rows["a"].frozen == "all: a.trainable=False"
    assert "12 of 47 parameters are trained" in str(summary.table())

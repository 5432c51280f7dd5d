"""One tower function, every way to make a variable: all found by name, trained, and saved."""

import numpy as np
import pytest

from towerpack._tensorflow import tf, v1
from towerpack.tower import TowerContext, TowerFunc, TracedTower, VariableStore, keras_layers
from towerpack.tower.varreplace import custom_getter_scope, freeze_variables, remap_variables

layers = tf.keras.layers
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
SPEC = [tf.TensorSpec([None, 3], tf.float32, "x")]


class Linear(tf.Module):
    """A module that makes its variables at the first call."""

    def __init__(self, units, name=None):
        super().__init__(name=name)
        self.units, self.w = units, None

    @tf.Module.with_name_scope
    def __call__(self, x):
        if self.w is None:
            self.w = tf.Variable(tf.ones([x.shape[-1], self.units]), name="w")
        return x @ self.w


def by_get_variable(x):
    with v1.variable_scope("fc"):
        return x @ v1.get_variable("W", [3, 2])


def by_keras_inside(x):
    return layers.Dense(2)(x)


def by_plain_variable(x):
    return x * tf.Variable(tf.ones([]), name="scale") * tf.Variable(tf.ones([]), name="scale")


def by_module_inside(x):
    return Linear(2, name="linear")(x)


KINDS = {
    by_get_variable: ["fc/W"],
    by_keras_inside: ["dense/kernel", "dense/bias"],
    by_plain_variable: ["scale", "scale_1"],
    by_module_inside: ["linear/w"],
}


def trace(func, store, is_training=True):
    tower = TowerFunc(lambda x: tf.reduce_sum(func(x) ** 2), SPEC)

    def step(x):
        with TowerContext("", is_training=is_training, store=store), tf.GradientTape() as tape:
            cost = tower(x).output
        store.adopt_all(tape.watched_variables())
        gradients = tape.gradient(cost, list(store.trainable().values()))
        return cost, [tf.zeros([]) if g is None else g for g in gradients]

    return tf.function(step, autograph=False, input_signature=SPEC)


@pytest.mark.parametrize(("func", "names"), KINDS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_found_again_by_name_in_every_trace(func, names):
    store = VariableStore()
    first, _ = trace(func, store)(X)
    made = dict(store.variables)
    assert list(made) == names
    second, gradients = trace(func, store)(X)
    assert store.variables == made
    assert float(first) == float(second)
    assert len(gradients) == len(names)
    assert TracedTower(TowerFunc(func, SPEC), store).store.variables == made


def outside():
    w = tf.Variable(tf.ones([3, 2]), name="w_outside")
    return {
        "keras model, built": tf.keras.Sequential(
            [tf.keras.Input([3]), layers.Dense(2), layers.BatchNormalization()], name="net"
        ),
        "keras layer, not built": layers.Dense(2, name="lazy"),
        "module": Linear(2, name="held"),
        "variable": lambda x: x @ w,
    }


@pytest.mark.parametrize("kind", outside())
def test_made_outside_of_the_tower_function(kind):
    func, store = outside()[kind], VariableStore()
    first, gradients = trace(func, store)(X)
    assert gradients
    assert all(np.abs(g.numpy()).sum() > 0 for g in gradients[:1])
    made = dict(store.variables)
    second, _ = trace(func, store)(X)
    assert store.variables == made
    assert float(first) == pytest.approx(float(second))


def test_layers_made_inside_are_named_the_same_whatever_the_process_made_before():
    names = []
    for _ in range(2):
        layers.Dense(1)
        store = VariableStore()
        trace(by_keras_inside, store)(X)
        names.append(list(store.variables))
    assert names[0] == names[1]


def test_keras_still_has_the_place_where_its_names_are_counted():
    assert layers.Dense  # loads Keras
    assert keras_layers.keras_global_state() is not None


def test_names_outside_of_towers_go_on_counting():
    before = layers.Dense(1).name
    trace(by_keras_inside, VariableStore())(X)
    assert layers.Dense(1).name not in (before, "dense")


def test_a_layer_outside_and_one_inside_of_the_same_name_stay_apart():
    held = layers.Dense(3, name="same")
    store = VariableStore()
    for _ in range(2):
        trace(lambda x: layers.Dense(3, name="same")(held(x)), store)(X)
        assert len([name for name in store.variables if name.endswith("kernel")]) == 2
        assert store["same/kernel"] is held.kernel.value


def test_names_that_only_order_tells_apart_are_refused_when_the_order_changes():
    held = []

    def tower(x):
        if not held:
            held.append(tf.Variable(1.0, name="w"))
        return x * held[0] * tf.Variable(1.0, name="w")

    store = VariableStore()
    trace(tower, store)(X)
    with pytest.raises(ValueError, match="2 variables named 'w', but this call 1; give each"):
        trace(tower, store)(X)


def test_a_function_that_makes_variables_is_traced_once():
    traces = []

    def tower(x):
        traces.append(x)
        dense = tf.keras.layers.Dense(2) if len(traces) == 1 else None
        made = tf.Variable(1.0) * v1.get_variable("v", [])
        return made * (dense(x) if dense else x)

    trace(tower, VariableStore())(X)
    assert len(traces) == 1


def test_an_initial_value_may_be_computed_but_not_from_the_input():
    def computed(x):
        return x * tf.Variable(tf.random.stateless_normal([3], [1, 2]) * 2, name="w")

    store = VariableStore()
    trace(computed, store)(X)
    np.testing.assert_allclose(store["w"], tf.random.stateless_normal([3], [1, 2]) * 2)
    with pytest.raises(ValueError, match="depends on 'x', an input of the trace"):
        trace(lambda x: x * tf.Variable(tf.reduce_sum(x), name="v"), VariableStore())(X)


@pytest.mark.parametrize("func", KINDS, ids=lambda f: f.__name__)
def test_frozen_variables_get_no_gradient_whoever_makes_them(func):
    def stopped(x):
        with freeze_variables():
            return func(x) + v1.get_variable("other", []) * tf.reduce_sum(x)

    store = VariableStore()
    _, gradients = trace(stopped, store)(X)
    assert len(store.trainable()) == len(KINDS[func]) + 1
    assert all(np.all(g.numpy() == 0) for g in gradients)

    def skipped(x):
        with freeze_variables(stop_gradient=False, skip_collection=True):
            return func(x)

    store = VariableStore()
    trace(skipped, store)(X)
    assert store.trainable() == {}
    assert list(store.variables) == KINDS[func]


@pytest.mark.parametrize("func", KINDS, ids=lambda f: f.__name__)
def test_remapped_variables_are_used_and_the_store_holds_the_variable(func):
    def doubled(x):
        with remap_variables(lambda v: v * 2):
            return func(x)

    store = VariableStore()
    plain, _ = trace(func, store)(X)
    mapped, _ = trace(doubled, store)(X)
    power = len(KINDS[func]) if func is by_plain_variable else 1
    assert float(mapped) == pytest.approx(float(plain) * 4**power, rel=1e-5)
    assert all(isinstance(v, tf.Variable) for v in store.variables.values())


def test_a_custom_getter_sees_names_and_may_change_arguments():
    seen = []

    def getter(getter, name, *args, **kwargs):
        seen.append(name)
        return getter(name, *args, **{**kwargs, "trainable": False})

    def tower(x):
        with custom_getter_scope(getter):
            return by_keras_inside(by_plain_variable(by_get_variable(x)))

    store = VariableStore()
    trace(tower, store)(X)
    assert seen[:2] == ["fc/W", "scale"]
    assert store.trainable() == {}


def test_all_kinds_in_one_tower_agree_with_keras_over_ten_steps():
    held = layers.Dense(4, name="held")
    module = Linear(4, name="module")

    def tower(x):
        with v1.variable_scope("first"):
            x = tf.nn.tanh(x @ v1.get_variable("W", [3, 4]))
        x = tf.nn.tanh(held(x))
        x = tf.nn.tanh(layers.Dense(4, name="inside")(x))
        x = tf.nn.tanh(module(x) * 0.1)
        return x * tf.Variable(tf.ones([]), name="scale")

    store = VariableStore()
    step = trace(tower, store)
    step(X)
    names = list(store.trainable())
    values = {name: variable.numpy() for name, variable in store.trainable().items()}

    inputs = tf.keras.Input([3])
    x = layers.Dense(4, "tanh", use_bias=False, name="a")(inputs)
    x = layers.Dense(4, "tanh", name="b")(x)
    x = layers.Dense(4, "tanh", name="c")(x)
    x = tf.keras.ops.tanh(layers.Dense(4, use_bias=False, name="d")(x) * 0.1)
    model = tf.keras.Model(inputs, layers.Dense(1, use_bias=False, name="unused")(x * 1.0))
    features = tf.keras.Model(inputs, x)
    scale = tf.Variable(1.0)
    order = ["first/W", "held/kernel", "held/bias", "inside/kernel", "inside/bias", "module/w"]
    assert sorted(names) == sorted([*order, "scale"])
    for variable, name in zip(model.trainable_variables, order, strict=False):
        variable.assign(values[name])
    reference = [*(variable.value for variable in features.trainable_variables), scale]

    for _ in range(10):
        _, gradients = step(X)
        mine = dict(zip(names, gradients, strict=True))
        with tf.GradientTape() as tape:
            cost = tf.reduce_sum((features(X) * scale) ** 2)
        theirs = tape.gradient(cost, reference)
        for name, gradient, variable in zip([*order, "scale"], theirs, reference, strict=True):
            np.testing.assert_allclose(mine[name], gradient, atol=1e-6, rtol=1e-5)
            store[name].assign_sub(0.1 * mine[name])
            variable.assign_sub(0.1 * gradient)
    for name, variable in zip([*order, "scale"], reference, strict=True):
        np.testing.assert_allclose(store[name], variable, atol=1e-5)

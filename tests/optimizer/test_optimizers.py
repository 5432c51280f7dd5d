import numpy as np
import pytest

from towerpack._tensorflow import tf, v1
from towerpack.optimizer import (
    LAMB,
    SGD,
    AccumGradOptimizer,
    Adafactor,
    Adam,
    AdamW,
    Lion,
    Momentum,
    RMSProp,
    VariableAssignmentOptimizer,
    as_optimizer,
)
from towerpack.tower import VariableStore, get_global_step_var

keras = tf.keras.optimizers
PAIRS = [
    (SGD(0.1), keras.SGD(0.1)),
    (Momentum(0.1), keras.SGD(0.1, momentum=0.9)),
    (Momentum(0.1, nesterov=True), keras.SGD(0.1, momentum=0.9, nesterov=True)),
    (RMSProp(0.01), keras.RMSprop(0.01)),
    (RMSProp(0.01, momentum=0.5), keras.RMSprop(0.01, momentum=0.5)),
    (Adam(0.01, epsilon=1e-7), keras.Adam(0.01)),
    (AdamW(0.01, 0.1, epsilon=1e-7, decay_pattern=".*"), keras.AdamW(0.01, weight_decay=0.1)),
    (Lion(0.01), keras.Lion(0.01)),
    (LAMB(0.01), keras.Lamb(0.01)),
]
STEPS = 5


def initial():
    rng = np.random.default_rng(0)
    return {
        "fc/W": rng.normal(size=(3, 4)).astype(np.float32),
        "fc/b": rng.normal(size=4).astype(np.float32),
    }


def run(optimizer, gradients=None, steps=STEPS, dtype=tf.float32):
    """The weights after some steps of deterministic gradients, and the store."""
    optimizer, store = as_optimizer(optimizer), VariableStore()
    for name, value in initial().items():
        store.make(name, lambda value=value: tf.cast(value, dtype), trainable=True)
    with store.scope():
        counter = get_global_step_var()

    @tf.function(autograph=False)
    def step():
        weights = list(store.trainable().values())
        scale = tf.cast(counter + 1, dtype)
        grads = gradients(store, counter) if gradients else [tf.sin(scale * w) for w in weights]
        with store.scope():
            optimizer.apply_gradients(list(zip(grads, weights, strict=True)))
        counter.assign_add(1)

    step.get_concrete_function()
    optimizer.take_in_variables(store)

    history = []
    for _ in range(steps):
        step()
        history.append({name: store[name].numpy() for name in initial()})
    return history, store


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda o: type(o).__name__)
def test_ours_equals_keras(ours, theirs):
    mine, _ = run(ours)
    other, _ = run(theirs)
    for a, b in zip(mine, other, strict=True):
        for name in initial():
            np.testing.assert_allclose(a[name], b[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("relative_step", [False, True])
def test_adafactor_equals_keras(relative_step):
    mine, _ = run(Adafactor(0.05, relative_step=relative_step))
    # On Keras' own variables: its Adafactor takes no name with a slash in it.
    theirs = keras.Adafactor(0.05, relative_step=relative_step)
    variables = [tf.keras.Variable(value) for value in initial().values()]
    for step in range(STEPS):
        theirs.apply([tf.sin((step + 1.0) * v.value) for v in variables], variables)
    for name, variable in zip(initial(), variables, strict=True):
        np.testing.assert_allclose(mine[-1][name], variable.numpy(), rtol=2e-5, atol=2e-6)


def adafactor_by_hand(weights, gradients, rate):
    """The algorithm of the paper (Shazeer and Stern, 2018) in float64."""
    weights, rows, columns = np.float64(weights), 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        beta, square = 1 - step**-0.8, np.float64(gradient) ** 2 + 1e-30
        rows = beta * rows + (1 - beta) * square.mean(1)
        columns = beta * columns + (1 - beta) * square.mean(0)
        update = gradient / np.sqrt(np.outer(rows, columns) / rows.mean())
        update /= max(1, np.sqrt(np.mean(update**2)))
        size = max(1e-3, np.sqrt(np.mean(weights**2)))
        weights = weights - min(rate, step**-0.5) * size * update
    return weights


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_adafactor_with_rows_and_columns_of_zeros(scale):
    """Dead ReLUs in a small batch; the product of their second moments is zero in float32."""
    gradients = np.random.default_rng(0).normal(size=(STEPS, 3, 4)).astype(np.float32) * scale
    gradients[:, 1] = gradients[:, :, 2] = 0
    gradients[2:, :, 0] = 0

    def constant(store, counter):
        return [tf.gather(tf.constant(gradients, tf.float32), counter), tf.zeros(4)]

    mine, _ = run(Adafactor(0.05), constant)
    expected = adafactor_by_hand(initial()["fc/W"], gradients, 0.05)
    np.testing.assert_allclose(mine[-1]["fc/W"], expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(mine[-1]["fc/b"], initial()["fc/b"])


def test_adam_equals_the_v1_optimizer_with_its_slot_names():
    mine, store = run(Adam(0.01))
    for _ in range(2):  # the second model in a process has the same names
        other, theirs = run(v1.train.AdamOptimizer(0.01))
    np.testing.assert_allclose(mine[-1]["fc/W"], other[-1]["fc/W"], atol=1e-7)
    slots = {"fc/W/Adam", "fc/W/Adam_1", "beta1_power", "beta2_power", "learning_rate"}
    assert slots <= set(store.variables)
    assert slots - {"learning_rate"} <= set(theirs.variables)
    np.testing.assert_allclose(store["beta1_power"], 0.9 ** (STEPS + 1), rtol=1e-6)


def reference(kind, steps):
    """The same in numpy, in float64, with a rate of 1/8 as it is in float32."""
    rate, results = 0.125, {}
    for name, weights in initial().items():
        w, m, s = np.float64(weights), 0.0, 0.0
        for step in range(1, steps + 1):
            g = np.sin(np.float32(step) * w)
            if kind is SGD:
                w = w - rate * g
            elif kind is Momentum:
                m = 0.9 * m + g
                w = w - rate * m
            elif kind is RMSProp:
                s = 0.9 * s + 0.1 * g**2
                w = w - rate * g / np.sqrt(s + 1e-7)
            else:
                m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
                if kind is AdamW and name == "fc/W":
                    w = w - rate * 0.01 * w
                root = np.sqrt(1 - 0.999**step)
                w = w - rate * root / (1 - 0.9**step) * m / (np.sqrt(s) + 1e-8)
        results[name] = w
    return results


@pytest.mark.parametrize("kind", [SGD, Momentum, RMSProp, Adam, AdamW])
def test_a_float64_model_is_trained_in_float64(kind):
    received, store = run(kind(0.125), steps=7, dtype=tf.float64)
    for name, expected in reference(kind, 7).items():
        np.testing.assert_allclose(received[-1][name], expected, rtol=1e-12)
    if kind is Adam:
        assert store["beta1_power"].dtype == store["beta2_power"].dtype == tf.float64


def test_a_float32_model_keeps_its_counters_as_old_checkpoints_have_them():
    _, store = run(Adam(0.1), steps=1)
    assert store["beta1_power"].dtype == store["beta2_power"].dtype == tf.float32


def test_a_type_that_cannot_hold_the_settings_is_refused():
    with pytest.raises(ValueError, match="can hold 0.999, received bfloat16"):
        run(Adam(0.1), steps=1, dtype=tf.bfloat16)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.array, np.int64, int])
def test_the_rate_may_be_a_number_of_numpy(kind):
    rate = kind(1 if kind in (np.int64, int) else 0.125)
    received, store = run(SGD(rate), steps=1)
    weights = initial()["fc/W"]
    np.testing.assert_allclose(
        received[0]["fc/W"], weights - np.float32(rate) * np.sin(weights), rtol=1e-5, atol=1e-6
    )
    assert store["learning_rate"].dtype == tf.float32


@pytest.mark.parametrize("rate", [np.nan, np.float32(np.inf), np.array([0.1])])
def test_a_rate_that_is_no_finite_number_is_refused(rate):
    with pytest.raises(ValueError, match="expected a finite number as learning rate"):
        run(SGD(rate), steps=1)


def test_the_rate_may_be_a_function_of_the_step_a_schedule_or_a_variable():
    def by_hand(rates):
        weights = initial()["fc/W"]
        for step, rate in enumerate(rates):
            weights = weights - np.float32(rate) * np.sin((step + 1) * weights)
        return weights

    rates = [0.1 / (1 + step) for step in range(STEPS)]
    function = SGD(lambda step: 0.1 / (1 + tf.cast(step, tf.float32)))
    schedule = SGD(keras.schedules.InverseTimeDecay(0.1, 1, 1))
    for optimizer in (function, schedule):
        np.testing.assert_allclose(run(optimizer)[0][-1]["fc/W"], by_hand(rates), atol=1e-5)
    variable = tf.Variable(0.1)
    np.testing.assert_allclose(run(SGD(variable))[0][-1]["fc/W"], by_hand([0.1] * STEPS), atol=1e-5)
    with pytest.raises(TypeError, match="expected a learning rate"):
        run(SGD("fast"))


def test_a_rate_given_as_a_number_can_be_changed_while_training():
    optimizer, store = SGD(0.1), VariableStore()
    weight = store.make("w", lambda: tf.zeros([]), trainable=True)

    @tf.function(autograph=False)
    def step():
        with store.scope():
            optimizer.apply_gradients([(tf.constant(1.0), weight)])

    step()
    store["learning_rate"].assign(1.0)
    step()
    assert float(weight) == pytest.approx(-1.1)


@pytest.mark.parametrize(
    "optimizer", [SGD(0.1), Adam(0.1), Momentum(0.1)], ids=["SGD", "Adam", "Momentum"]
)
def test_sparse_gradients_equal_dense_ones(optimizer):
    indices, values = [1, 1, 2], np.ones([3, 4], np.float32)

    def sparse(store, counter):
        slices = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([3, 4]))
        return [slices, tf.zeros([4])]

    def dense(store, counter):
        full = np.zeros([3, 4], np.float32)
        np.add.at(full, indices, values)
        return [tf.constant(full), tf.zeros([4])]

    a, _ = run(optimizer, sparse)
    b, _ = run(optimizer, dense)
    np.testing.assert_allclose(a[-1]["fc/W"], b[-1]["fc/W"], atol=1e-6)


def test_weight_decay_goes_by_name():
    plain, _ = run(SGD(0.1), steps=1)
    decayed, _ = run(SGD(0.1, weight_decay=0.5), steps=1)
    np.testing.assert_array_equal(plain[0]["fc/b"], decayed[0]["fc/b"])
    difference = plain[0]["fc/W"] - decayed[0]["fc/W"]
    assert np.abs(difference).max() > 0.01


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kind", [SGD, v1.train.AdamOptimizer, keras.SGD])
def test_accumulated_gradients_are_applied_in_every_kth_step(kind, average):
    optimizer = kind(0.1)

    def ones(store, counter):
        scale = tf.cast(counter + 1, tf.float32)
        return [scale * tf.ones([3, 4]), scale * tf.ones([4])]

    history, store = run(AccumGradOptimizer(optimizer, 3, average=average), ones, steps=7)
    start = initial()["fc/W"]
    np.testing.assert_array_equal(history[1]["fc/W"], start)
    assert np.all(history[2]["fc/W"] < start)
    np.testing.assert_array_equal(history[2]["fc/W"], history[4]["fc/W"])
    assert np.all(history[5]["fc/W"] < history[2]["fc/W"])
    if isinstance(optimizer, SGD):
        expected = start - 0.1 * (1 + 2 + 3) / (3 if average else 1)
        np.testing.assert_allclose(history[2]["fc/W"], expected, rtol=1e-5)
    np.testing.assert_array_equal(store["fc/W/AccumGrad"], np.full([3, 4], 7))


def test_weights_can_be_clipped_after_the_update():
    clip = VariableAssignmentOptimizer(SGD(0.1), lambda v: tf.clip_by_value(v, -0.5, 0.5))
    history, _ = run(clip, steps=1)
    assert np.abs(history[0]["fc/W"]).max() == pytest.approx(0.5)


def test_an_optimizer_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="expected an optimizer"):
        as_optimizer("adam")

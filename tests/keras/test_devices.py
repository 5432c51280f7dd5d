"""`fit` on two devices, beside Keras' on the joint batch and under a `MirroredStrategy`."""

import numpy as np
import pytest

import towerpack
from tests.keras.beside_fit import (
    BATCH,
    CASES,
    Y1,
    Case,
    X,
    assert_same,
    by_keras,
    by_us,
    keras,
    started,
)
from towerpack._tensorflow import tf

TRAINERS = {
    "replicated": towerpack.SyncMultiGPUTrainerReplicated,
    "shared": towerpack.SyncMultiGPUTrainer,
}


@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("name", ["two of each", "metrics with state", "class_weight"])
def test_two_devices_train_like_one_on_the_joint_batch(name, kind):
    """The last batch may have 3 samples, of which the second tower gets one.

    Keras takes the mean of the losses of each output over the parts of batches, so that with
    several outputs the parts must be equal for equal logs.
    """
    options = {"validation_split": 0.27 if name == "two of each" else 0.3}
    ours = by_us(CASES[name], trainer=TRAINERS[kind](2), **options)
    assert_same(ours, by_keras(CASES[name], **options))


def penalized():
    x = keras.Input([4])
    h = keras.layers.Dense(6, "tanh", kernel_regularizer="l2", activity_regularizer="l1")(x)
    limit = keras.constraints.MaxNorm(0.4)
    model = keras.Model(x, keras.layers.Dense(1, kernel_constraint=limit)(h))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.8), "mse", metrics=["mae"])
    return model


def test_two_devices_train_like_a_mirrored_strategy():
    case = Case(penalized, X[:16], Y1[:16], {"validation_split": 0.0})
    ours = by_us(case, trainer=TRAINERS["replicated"](2))
    weights = started(case).get_weights()
    keras.backend.clear_session()
    reduction = tf.distribute.ReductionToOneDevice("/cpu:0")
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], reduction).scope():
        model = penalized()
    model.set_weights(weights)
    model.jit_compile = False
    history = model.fit(case.x, case.y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert_same(ours, (model, history))


def test_datasets_are_divided_too():
    case = Case(penalized, None, None, {"validation_split": 0.0})

    def data():
        return tf.data.Dataset.from_tensor_slices((X[:16], Y1[:16])).batch(BATCH)

    options = {"x": data(), "trainer": TRAINERS["shared"](2)}
    assert_same(by_us(case, **options), by_keras(case, x=X[:16], y=Y1[:16]), atol=1e-2)


def test_what_two_devices_cannot_do_is_refused():
    trainer = TRAINERS["replicated"](2)
    with pytest.raises(ValueError, match="Subclassed cannot be copied: .* SyncMultiGPUTrainer"):
        by_us(CASES["subclassed"], trainer=trainer)
    with pytest.raises(ValueError, match="has a train_step of its own"):
        by_us(CASES["own train_step"], trainer=TRAINERS["shared"](2))
    with pytest.raises(ValueError, match="a sample for each of 2 towers.*a batch of 1"):
        towerpack.keras.fit(
            started(CASES["class_weight"]), X[:5], Y1[:5] > 0, 4, trainer=TRAINERS["shared"](2)
        )


def test_outputs_of_one_axis_are_refused_on_several_towers():
    """Keras would not divide their loss among the towers, which would train N times as fast."""
    inputs = keras.Input([4])
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs)[:, 0])
    model.compile("sgd", "mse")
    x = np.ones([8, 4], "float32")
    with pytest.raises(ValueError, match=r"Keep the last axis, as in Dense\(1\)"):
        towerpack.keras.fit(model, x, x[:, 0], verbose=0, trainer=TRAINERS["shared"](2))
    towerpack.keras.fit(model, x, x[:, 0], verbose=0)  # one tower is right

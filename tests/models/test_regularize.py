from itertools import islice

import numpy as np
import pytest

from tests.models.building import build
from tests.tiny_model import CLASSES, FEATURES, TinyModel, tiny_flow
from towerpack._tensorflow import tf, v1
from towerpack.callbacks import Callback
from towerpack.dataflow import RepeatedData
from towerpack.input_source import QueueInput
from towerpack.models import (
    Conv2D,
    FullyConnected,
    l1_regularizer,
    l2_regularizer,
    regularize_cost,
    regularize_cost_from_collection,
)
from towerpack.models.regularize import CalledTooEarly
from towerpack.optimizer import SGD
from towerpack.tower import VariableStore
from towerpack.train import SimpleTrainer, SyncMultiGPUTrainer

X = np.ones([2, 3], np.float32)


def two_layers(x):
    return FullyConnected("fc1", FullyConnected("fc0", x, 4), 2)


def test_l1_and_l2():
    weights = np.array([1.0, -2.0, 3.0], np.float32)
    assert float(l2_regularizer(0.5)(weights)) == pytest.approx(0.5 * 7)
    assert float(l1_regularizer(0.5)(weights)) == pytest.approx(0.5 * 6)
    assert l2_regularizer(1.0)(weights.astype(np.float16)).dtype.name == "float32"


def test_regularize_cost_by_name():
    def tower(x):
        two_layers(x)
        return regularize_cost("fc1/W", l2_regularizer(2.0)), regularize_cost(
            "fc.*/W", l1_regularizer(1.0), name="l1"
        )

    (one, both), store = build(tower, X)
    w0, w1 = store["fc0/W"].numpy(), store["fc1/W"].numpy()
    np.testing.assert_allclose(one, np.sum(w1**2), rtol=1e-5)
    np.testing.assert_allclose(both, np.abs(w0).sum() + np.abs(w1).sum(), rtol=1e-5)
    assert build(tower, X, is_training=False, store=store)[0] == (0, 0)


def test_called_before_a_variable_is_made_it_raises_and_leaves_nothing_open():
    def tower(x):
        x = FullyConnected("fc0", x, 4)
        cost = regularize_cost("fc.*/W", l2_regularizer(2.0))
        FullyConnected("fc1", x, 2)
        return cost

    store = VariableStore()
    with pytest.raises(CalledTooEarly, match=r"before these variables were made: \['fc1/W'\]"):
        build(tower, X, store=store)
    with pytest.raises(RuntimeError, match="no open variable store"):
        VariableStore.current()
    cost, _ = build(tower, X, store=store)
    expected = sum(np.sum(store[f"fc{i}/W"].numpy() ** 2) for i in range(2))
    np.testing.assert_allclose(cost, expected, rtol=1e-5)


SCALE, RATE, EPOCHS = 0.2, 0.5, 2
TRAINERS = {
    "single": lambda: SimpleTrainer(steps_per_call=1),
    "fused": lambda: SimpleTrainer(jit=False, steps_per_call=4),
    "compiled": lambda: SimpleTrainer(jit=True),
    "two towers": lambda: SyncMultiGPUTrainer(2),
}


def loss_of(logits, label):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
    return tf.reduce_mean(losses)


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_training_equals_a_plain_loop_wherever_regularize_cost_is_called(trainer):
    dense = tf.keras.layers.Dense(CLASSES)  # a Keras layer made outside is found by its use
    dense.build([None, FEATURES])
    first = {}

    def tower(x, label):
        cost = regularize_cost("W|kernel", l2_regularizer(SCALE))  # before any layer
        return loss_of(FullyConnected("fc", x, CLASSES) + dense(x), label) + cost

    class Keep(Callback):
        def _before_train(self):
            first.update({n: v.numpy() for n, v in self.trainer.store.trainable().items()})

    flow = RepeatedData(tiny_flow(), -1)
    with trainer() as trained:
        signature = TinyModel().input_signature
        trained.setup_graph(signature, QueueInput(flow), tower, lambda: SGD(RATE))
        towers = trained.replication.count
        steps = len(tiny_flow()) // towers
        trained.train([Keep()], [], steps_per_epoch=steps, max_epoch=EPOCHS)
        last = {n: v.numpy() for n, v in trained.store.trainable().items()}

    assert len(first) == 4
    weights = {name: tf.Variable(value) for name, value in first.items()}
    kernels = [w for w in weights.values() if w.shape.rank == 2]
    biases = [w for w in weights.values() if w.shape.rank == 1]
    batches = list(islice(flow, towers * steps * EPOCHS))
    for start in range(0, len(batches), towers):  # equal batches: their mean is that of one batch
        group = batches[start : start + towers]
        x, label = (np.concatenate(parts) for parts in zip(*group, strict=True))
        with tf.GradientTape() as tape:
            logits = sum(x @ w for w in kernels) + sum(biases)
            cost = loss_of(logits, label) + sum(SCALE * tf.nn.l2_loss(w) for w in kernels)
        for name, gradient in tape.gradient(cost, weights).items():
            weights[name].assign_sub(RATE * gradient)
    for name, weight in weights.items():
        np.testing.assert_allclose(last[name], weight.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_shared_layer_counts_once():
    def tower(x):
        for _ in range(3):
            with v1.variable_scope("shared", reuse=tf.compat.v1.AUTO_REUSE):
                v1.get_variable("W", [4], regularizer=l2_regularizer(2.0))
        v1.get_variable("other", [3], regularizer=l2_regularizer(2.0))
        collected = v1.get_collection(v1.GraphKeys.REGULARIZATION_LOSSES)
        return regularize_cost_from_collection(), tf.add_n(collected)

    store = VariableStore()
    for _ in range(2):  # in the trace that makes the variable, and in one that finds it
        costs, _ = build(tower, X, store=store)
        expected = sum(np.sum(store[name].numpy() ** 2) for name in ("shared/W", "other"))
        np.testing.assert_allclose(costs, expected, rtol=1e-5)


def test_a_pattern_without_variables_is_said_and_costs_nothing(capsys):
    def tower(x):
        two_layers(x)
        return regularize_cost("fc9/W", l2_regularizer())

    cost, _ = build(tower, X)
    assert cost == 0
    said = capsys.readouterr().err
    assert said.count("no trainable variable matches 'fc9/W'; the trainable variables are") == 1
    assert "['fc0/W'" in said


def test_from_collection_in_every_trace():
    image = np.ones([2, 4, 4, 3], np.float32)

    def tower(x):
        Conv2D("c", x, 2, 3, kernel_regularizer=l2_regularizer(2.0))
        Conv2D("d", x, 2, 3, kernel_regularizer=l2_regularizer(2.0), use_bias=False)
        return regularize_cost_from_collection()

    cost, store = build(tower, image)
    expected = sum(np.sum(store[f"{name}/W"].numpy() ** 2) for name in "cd")
    np.testing.assert_allclose(cost, expected, rtol=1e-5)
    np.testing.assert_allclose(build(tower, image, store=store)[0], expected, rtol=1e-5)
    assert build(tower, image, store=store, is_training=False)[0] == 0


def test_nothing_in_the_collection():
    assert build(lambda x: regularize_cost_from_collection(), X)[0] == 0


def test_outside_of_a_tower_is_an_error():
    with pytest.raises(RuntimeError, match="while a tower is being built"):
        regularize_cost(".*", l2_regularizer())

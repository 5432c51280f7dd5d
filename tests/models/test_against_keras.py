"""Layers that Keras has too: equal values and equal gradients, with the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.building import gradients
from towerpack import models as m
from towerpack._tensorflow import tf
from towerpack.tower import TowerContext, VariableStore

K = tf.keras.layers
IMAGE, SEQUENCE, VOLUME = (2, 6, 7, 4), (2, 5, 4), (1, 4, 4, 3, 2)
CONV = ["W", "b"]
ATTENTION = [f"{part}/{kind}" for part in ("query", "key", "value", "out") for kind in ("W", "b")]

# name: (towerpack's layer, Keras' layer, shape of the input, our names of Keras' weights)
PAIRS = {
    "Conv1D": (
        lambda x: m.Conv1D("it", x, 6, 3, dilation_rate=2, activation=tf.nn.elu),
        lambda: K.Conv1D(6, 3, padding="same", dilation_rate=2, activation="elu"),
        SEQUENCE,
        CONV,
    ),
    "Conv2D strides": (
        lambda x: m.Conv2D("it", x, 6, (3, 2), strides=(2, 1), padding="valid"),
        lambda: K.Conv2D(6, (3, 2), (2, 1)),
        IMAGE,
        CONV,
    ),
    "Conv2D dilated": (
        lambda x: m.Conv2D("it", x, 6, 3, dilation_rate=2),
        lambda: K.Conv2D(6, 3, padding="same", dilation_rate=2),
        IMAGE,
        CONV,
    ),
    "Conv2D split": (
        lambda x: m.Conv2D("it", x, 6, 3, split=2),
        lambda: K.Conv2D(6, 3, padding="same", groups=2),
        IMAGE,
        CONV,
    ),
    "Conv3D": (
        lambda x: m.Conv3D("it", x, 3, (2, 3, 1), strides=(1, 2, 1)),
        lambda: K.Conv3D(3, (2, 3, 1), (1, 2, 1), "same"),
        VOLUME,
        CONV,
    ),
    "Conv2DTranspose same": (
        lambda x: m.Conv2DTranspose("it", x, 3, 3, 2),
        lambda: K.Conv2DTranspose(3, 3, 2, "same"),
        IMAGE,
        CONV,
    ),
    "Conv2DTranspose valid": (
        lambda x: m.Conv2DTranspose("it", x, 3, (4, 2), 3, padding="valid"),
        lambda: K.Conv2DTranspose(3, (4, 2), 3, "valid"),
        IMAGE,
        CONV,
    ),
    "DepthwiseConv2D": (
        lambda x: m.DepthwiseConv2D("it", x, 3, strides=2, depth_multiplier=2),
        lambda: K.DepthwiseConv2D(3, 2, "same", depth_multiplier=2),
        IMAGE,
        CONV,
    ),
    "SeparableConv2D": (
        lambda x: m.SeparableConv2D("it", x, 5, 3, padding="valid"),
        lambda: K.SeparableConv2D(5, 3),
        IMAGE,
        ["depthwise/W", "W", "b"],
    ),
    "FullyConnected": (
        lambda x: m.FullyConnected("it", x, 5, activation=tf.nn.tanh),
        lambda: K.Dense(5, "tanh"),
        (3, 4),
        CONV,
    ),
    "BatchNorm 4-D": (
        lambda x: m.BatchNorm("it", x),
        lambda: K.BatchNormalization(momentum=0.9, epsilon=1e-5),
        IMAGE,
        ["gamma", "beta", "mean/EMA", "variance/EMA"],
    ),
    "BatchNorm 2-D": (
        lambda x: m.BatchNorm("it", x, epsilon=1e-3),
        lambda: K.BatchNormalization(momentum=0.9, epsilon=1e-3),
        (5, 4),
        ["gamma", "beta", "mean/EMA", "variance/EMA"],
    ),
    "LayerNorm": (
        lambda x: m.LayerNorm("it", x, axis=-1),
        lambda: K.LayerNormalization(epsilon=1e-5),
        SEQUENCE,
        ["gamma", "beta"],
    ),
    "InstanceNorm": (
        lambda x: m.InstanceNorm("it", x),
        lambda: K.GroupNormalization(groups=-1, epsilon=1e-5),
        IMAGE,
        ["gamma", "beta"],
    ),
    "GroupNorm": (
        lambda x: m.GroupNorm("it", x, 2),
        lambda: K.GroupNormalization(2, epsilon=1e-5),
        IMAGE,
        ["gamma", "beta"],
    ),
    "RMSNorm": (
        lambda x: m.RMSNorm("it", x),
        lambda: K.RMSNormalization(epsilon=1e-6),
        SEQUENCE,
        ["gamma"],
    ),
    "LSTM": (
        lambda x: m.LSTM("it", x, 3),
        lambda: K.LSTM(3, return_sequences=True),
        SEQUENCE,
        "WUb",
    ),
    "LSTM last": (
        lambda x: m.LSTM("it", x, 3, return_sequences=False),
        lambda: K.LSTM(3),
        SEQUENCE,
        "WUb",
    ),
    "GRU": (lambda x: m.GRU("it", x, 3), lambda: K.GRU(3, return_sequences=True), SEQUENCE, "WUb"),
    "GRU reversed": (
        lambda x: tf.reverse(m.GRU("it", x, 3, reverse=True), [1]),
        lambda: K.GRU(3, return_sequences=True, go_backwards=True),
        SEQUENCE,
        "WUb",
    ),
    "MultiHeadAttention": (
        lambda x: m.MultiHeadAttention("it", x, 2, 3, causal=True),
        lambda: _Itself(K.MultiHeadAttention(2, 3)),
        SEQUENCE,
        ATTENTION,
    ),
    "PReLU": (
        lambda x: m.PReLU("it", x),
        lambda: K.PReLU(shared_axes=[1, 2, 3]),
        IMAGE,
        ["alpha"],
    ),
    "MaxPooling": (
        lambda x: m.MaxPooling("it", x, 3, 2, padding="same"),
        lambda: K.MaxPooling2D(3, 2, "same"),
        IMAGE,
        [],
    ),
    "AvgPooling": (
        lambda x: m.AvgPooling("it", x, (2, 3), padding="same"),
        lambda: K.AveragePooling2D((2, 3), padding="same"),
        IMAGE,
        [],
    ),
    "GlobalAvgPooling": (
        lambda x: m.GlobalAvgPooling("it", x),
        K.GlobalAveragePooling2D,
        IMAGE,
        [],
    ),
    "GlobalMaxPooling": (lambda x: m.GlobalMaxPooling("it", x), K.GlobalMaxPooling2D, IMAGE, []),
    "UpSampling": (
        lambda x: m.UpSampling("it", x, (2, 3)),
        lambda: K.UpSampling2D((2, 3)),
        IMAGE,
        [],
    ),
    "UpSampling bilinear": (
        lambda x: m.UpSampling("it", x, 2, interpolation="bilinear"),
        lambda: K.UpSampling2D(2, interpolation="bilinear"),
        IMAGE,
        [],
    ),
    "LeakyReLU": (lambda x: m.LeakyReLU(x, 0.3), lambda: K.LeakyReLU(0.3), IMAGE, []),
    "ELU": (m.ELU, K.ELU, IMAGE, []),
    "Softmax": (m.Softmax, K.Softmax, IMAGE, []),
    **{
        name: (getattr(m, name), lambda name=name: K.Activation(name.lower()), IMAGE, [])
        for name in ("ReLU", "SELU", "GELU", "SiLU", "Sigmoid", "Tanh", "Softplus")
    },
}


class _Itself(tf.keras.layers.Layer):
    """Causal self-attention of a Keras layer, as a layer of one input."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x, use_causal_mask=True)


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_gradients_equal_keras(name):
    ours, make, shape, names = PAIRS[name]
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape).astype(np.float32)
    theirs = make()
    theirs.build(shape)
    values = [generator.normal(0.5, 0.3, w.shape).astype(np.float32) ** 2 for w in theirs.weights]
    theirs.set_weights(values)
    weight = generator.normal(size=theirs(x).shape).astype(np.float32)
    kwargs = {"training": True} if name.startswith("BatchNorm") else {}
    with tf.GradientTape() as tape:
        tape.watch(start := tf.constant(x))
        expected = theirs(start, **kwargs)
        cost = tf.reduce_sum(expected * weight)
    trainable = [w.value for w in theirs.trainable_weights]
    expected_dx, *expected_dw = tape.gradient(cost, [start, *trainable])

    store = VariableStore()
    with TowerContext("", is_training=True, store=store):
        ours(start)
    for ours_name, value in zip(names, values, strict=True):
        variable = store[f"it/{ours_name}"]
        variable.assign(value.reshape(variable.shape))
    output, dx, by_name = gradients(ours, x, weight, store)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-3, atol=2e-5)
    paths = [f"it/{n}" for n in names if f"it/{n}" in by_name]
    assert len(paths) == len(expected_dw)
    for path, wanted in zip(paths, expected_dw, strict=True):
        wanted = np.reshape(wanted, by_name[path].shape)
        np.testing.assert_allclose(by_name[path], wanted, rtol=1e-3, atol=1e-4, err_msg=path)


def test_embedding_equals_keras():
    ids = np.array([[0, 3], [2, 3]], np.int32)
    theirs = K.Embedding(5, 4)
    theirs.build([None, 2])
    store = VariableStore()
    with TowerContext("", is_training=True, store=store):
        m.Embedding("it", tf.constant(ids), 5, 4)
        store["it/W"].assign(theirs.get_weights()[0])
    with TowerContext("", is_training=True, store=store):
        with tf.GradientTape() as tape:
            output = m.Embedding("it", tf.constant(ids), 5, 4)
    np.testing.assert_array_equal(output, theirs(ids))
    gradient = tf.convert_to_tensor(tape.gradient(output, store["it/W"]))
    np.testing.assert_array_equal(gradient[:, 0], [1, 0, 1, 2, 0])

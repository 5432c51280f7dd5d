import numpy as np

from tests.models.building import build
from towerpack._tensorflow import tf, v1
from towerpack.models import (
    FullyConnected,
    LayerNorm,
    MultiHeadAttention,
    SqueezeExcite,
    TransformerBlock,
)

IMAGE = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)
SEQUENCE = np.random.default_rng(1).normal(size=(3, 5, 4)).astype(np.float32)


def test_attention_to_a_context_with_a_mask():
    context = np.random.default_rng(2).normal(size=(3, 7, 6)).astype(np.float32)
    mask = np.ones([3, 1, 1, 7], bool)
    mask[..., 4:] = False

    def tower(x, context, mask):
        return MultiHeadAttention("a", x, 2, 5, context=context, mask=mask, output_dim=8)

    output, store = build(tower, SEQUENCE, context, mask)
    assert output.shape == (3, 5, 8)
    short, _ = build(tower, SEQUENCE, context[:, :4], mask[..., :4], store=store)
    np.testing.assert_allclose(output, short, atol=1e-5)
    theirs = tf.keras.layers.MultiHeadAttention(2, 5, output_shape=8)
    theirs.build(SEQUENCE.shape, context.shape)
    parts = [f"a/{part}/{kind}" for part in ("query", "key", "value", "out") for kind in "Wb"]
    theirs.set_weights([store[name].numpy() for name in parts])
    expected = theirs(SEQUENCE, context, attention_mask=np.repeat(mask[:, 0], 5, 1))
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_causal_attention_does_not_look_ahead():
    for layer in (MultiHeadAttention, TransformerBlock):
        output, store = build(lambda x, f=layer: f("a", x, 2, causal=True), SEQUENCE)
        changed = SEQUENCE.copy()
        changed[:, 3:] = 7
        other, _ = build(lambda x, f=layer: f("a", x, 2, causal=True), changed, store=store)
        np.testing.assert_allclose(output[:, :3], other[:, :3], atol=1e-5)
        assert np.abs(output[:, 3:] - other[:, 3:]).max() > 1e-3


def test_transformer_block_by_its_parts():
    output, store = build(lambda x: TransformerBlock("t", x, 2), SEQUENCE)

    def by_hand(x):
        with v1.variable_scope("t"):
            x += MultiHeadAttention("attention", LayerNorm("norm0", x, axis=-1), 2)
            y = tf.reshape(LayerNorm("norm1", x, axis=-1), [-1, 4])
            y = FullyConnected("fc1", FullyConnected("fc0", y, 16, activation=tf.nn.gelu), 4)
            return x + tf.reshape(y, tf.shape(x))

    np.testing.assert_allclose(build(by_hand, SEQUENCE, store=store)[0], output, atol=1e-5)
    after, _ = build(lambda x: TransformerBlock("t", x, 2, norm_first=False), SEQUENCE, store=store)
    np.testing.assert_allclose(after.mean(-1), 0, atol=1e-5)


def test_squeeze_excite_by_hand():
    output, store = build(lambda x: SqueezeExcite("se", x, 2), IMAGE)
    squeezed = np.maximum(IMAGE.mean((1, 2)) @ store["se/squeeze/W"].numpy(), 0)
    gate = 1 / (1 + np.exp(-squeezed @ store["se/excite/W"].numpy()))
    np.testing.assert_allclose(output, IMAGE * gate[:, None, None, :], rtol=1e-4, atol=1e-5)

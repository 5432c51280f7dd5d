"""Values of layers that Keras does not have, and arguments that the laws do not reach."""

import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf, v1
from towerpack.models import (
    GRU,
    LSTM,
    BatchNorm,
    ConcatWith,
    Conv2D,
    Conv2DTranspose,
    Deconv2D,
    Dropout,
    Embedding,
    FixedUnPooling,
    FullyConnected,
    GroupNorm,
    LayerNorm,
    LinearWrap,
    Maxout,
    MaxPooling,
    MultiHeadAttention,
    PixelShuffle,
    PReLU,
    SpectralNorm,
    SqueezeExcite,
    StochasticDepth,
    TransformerBlock,
    UpSampling,
    batch_flatten,
)
from towerpack.tower import TowerContext, VariableStore

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.normal(size=(2, 4, 6, 4)).astype(np.float32)
SEQUENCE = RANDOM.normal(size=(3, 5, 4)).astype(np.float32)


def test_maxout_takes_neighbours():
    output, _ = build(lambda x: Maxout(x, 2), IMAGE)
    np.testing.assert_array_equal(output, IMAGE.reshape(2, 4, 6, 2, 2).max(-1))
    with pytest.raises(ValueError, match="num_unit=3 must divide the channels, which are 4"):
        build(lambda x: Maxout("m", x, 3), IMAGE)


def test_concat_with_a_tensor_and_a_list():
    one, _ = build(lambda x: LinearWrap(x).ConcatWith(2 * x, 3)(), IMAGE)
    np.testing.assert_array_equal(one, np.concatenate([IMAGE, 2 * IMAGE], 3))
    two, _ = build(lambda x: ConcatWith(x, [2 * x, 3 * x], dim=1), IMAGE)
    np.testing.assert_array_equal(two, np.concatenate([IMAGE, 2 * IMAGE, 3 * IMAGE], 1))


def test_fixed_unpooling_is_a_kronecker_product():
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    output, _ = build(lambda x: FixedUnPooling("u", x, (2, 3), matrix), IMAGE)
    np.testing.assert_allclose(output[1, :, :, 2], np.kron(IMAGE[1, :, :, 2], matrix))
    default, _ = build(lambda x: FixedUnPooling("u", x, 2), IMAGE)
    np.testing.assert_array_equal(default[:, ::2, ::2], IMAGE)
    assert np.count_nonzero(default) == IMAGE.size
    with pytest.raises(ValueError, match=r"unpool_mat of shape \[2, 2\], received \(2, 3\)"):
        build(lambda x: FixedUnPooling("u", x, 2, matrix), IMAGE)


def test_pixel_shuffle_order():
    output, _ = build(lambda x: PixelShuffle("p", x, 2), IMAGE)
    assert output.shape == (2, 8, 12, 1)
    np.testing.assert_array_equal(output[0, :2, :2, 0].ravel(), IMAGE[0, 0, 0])
    with pytest.raises(ValueError, match="multiples of 9, received 4"):
        build(lambda x: PixelShuffle("p", x, 3), IMAGE)


def test_prelu_by_hand():
    output, store = build(lambda x: PReLU("p", x, 0.5), IMAGE)
    np.testing.assert_allclose(output, np.where(IMAGE > 0, IMAGE, 0.5 * IMAGE))
    assert list(store.variables) == ["p/alpha"]


def test_layer_norm_takes_all_axes_of_a_datapoint():
    output, _ = build(lambda x: LayerNorm("l", x), IMAGE)
    flat = IMAGE.reshape(2, -1)
    expected = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(output.reshape(2, -1), expected, atol=1e-4)


def test_norms_in_old_scripts():
    arguments = {"use_bias": False, "use_scale": True, "gamma_init": v1.constant_initializer(2.0)}
    for layer in (BatchNorm, LayerNorm, lambda *a, **k: GroupNorm(*a, group=2, **k)):
        _, store = build(lambda x, layer=layer: layer("n", x, **arguments), IMAGE)
        assert list(store.trainable()) == ["n/gamma"]
        np.testing.assert_array_equal(store["n/gamma"], [2, 2, 2, 2])


def test_deconv_is_conv_transpose_with_old_names():
    assert Deconv2D is Conv2DTranspose
    output, store = build(
        lambda x: LinearWrap(x).Conv2DTranspose("d", out_channel=3, kernel_shape=3, stride=2)(),
        IMAGE,
    )
    assert output.shape == (2, 8, 12, 3)
    assert store["d/W"].shape == (3, 3, 3, 4)
    assert build(lambda x: LinearWrap(x).Deconv2D("d", 3, 3, 2)(), IMAGE)[0].shape == output.shape


def test_pooling_in_old_scripts():
    output, _ = build(lambda x: MaxPooling("p", x, shape=3, stride=2, padding="SAME"), IMAGE)
    assert output.shape == (2, 2, 3, 4)


def test_stochastic_depth_drops_whole_datapoints():
    ones = np.ones([400, 2, 3], np.float32)
    output, _ = build(lambda x: StochasticDepth(x, rate=0.25), ones)
    assert set(np.round(np.unique(output), 4)) == {np.float32(0), np.float32(1.3333)}
    assert (output.reshape(400, -1).std(1) == 0).all()
    assert 0.65 < (output[:, 0, 0] > 0).mean() < 0.85


def test_dropout_messages():
    with pytest.raises(TypeError, match="either keep_prob"):
        build(lambda x: Dropout("d", x, 0.5, rate=0.5), IMAGE)
    with pytest.raises(ValueError, match=r"expected a rate in \[0, 1\), received 1"):
        build(lambda x: Dropout(x, rate=1), IMAGE)


def test_squeeze_excite_by_hand():
    output, store = build(lambda x: SqueezeExcite("se", x, 2), IMAGE)
    squeezed = np.maximum(IMAGE.mean((1, 2)) @ store["se/squeeze/W"].numpy(), 0)
    gate = 1 / (1 + np.exp(-squeezed @ store["se/excite/W"].numpy()))
    np.testing.assert_allclose(output, IMAGE * gate[:, None, None, :], rtol=1e-4, atol=1e-5)


def test_spectral_norm_converges_to_the_largest_singular_value():
    store = VariableStore()
    arguments = {"units": 5, "use_bias": False}
    eye = np.eye(7, dtype=np.float32)

    def tower(x):
        return SpectralNorm("f", x, FullyConnected, arguments)

    with TowerContext("", is_training=False, store=store):
        tower(tf.constant(eye))
    for _ in range(60):
        with TowerContext("", is_training=True, store=store):
            tower(tf.constant(eye))
    weights, _ = build(tower, eye, store=store, is_training=False)
    singular = np.linalg.svd(weights, compute_uv=False)
    np.testing.assert_allclose(singular[0], 1, rtol=1e-3)
    largest = np.linalg.svd(store["f/W"].numpy(), compute_uv=False)[0]
    np.testing.assert_allclose(weights, store["f/W"].numpy() / largest, rtol=1e-2, atol=1e-4)
    u = store["f/u"].numpy()
    build(tower, eye, store=store, is_training=False)
    np.testing.assert_array_equal(store["f/u"], u)


def test_spectral_norm_messages():
    with pytest.raises(TypeError, match="expected a layer such as Conv2D"):
        build(lambda x: SpectralNorm("s", x, tf.nn.relu), IMAGE)
    with pytest.raises(ValueError, match="MaxPooling has no kernel W"):
        build(lambda x: SpectralNorm("s", x, MaxPooling, {"pool_size": 2}), IMAGE)


@pytest.mark.parametrize(("layer", "states"), [(LSTM, 2), (GRU, 1)])
def test_recurrent_lengths_and_states(layer, states):
    lengths = np.array([5, 2, 0], np.int32)

    def tower(x, lengths):
        return layer("r", x, 3, sequence_length=lengths, return_state=True)

    (output, *last), store = build(tower, SEQUENCE, lengths)
    assert len(last) == states
    assert not output[1, 2:].any()
    assert not output[2].any()
    short, _ = build(lambda x: layer("r", x, 3), SEQUENCE[:, :2], store=store)
    np.testing.assert_allclose(output[1, :2], short[1], atol=1e-5)
    np.testing.assert_allclose(last[0][1], short[1, -1], atol=1e-5)
    np.testing.assert_allclose(last[0][0], output[0, -1], atol=1e-5)

    def continued(x):
        first = layer("r", x[:, :3], 3, return_state=True)
        start = first[1:] if states == 2 else first[1]
        with v1.variable_scope("", reuse=True):
            return layer("r", x[:, 3:], 3, initial_state=start)

    rest, _ = build(continued, SEQUENCE, store=store)
    np.testing.assert_allclose(rest[0], output[0, 3:], atol=1e-5)


def test_recurrent_in_reverse_keeps_the_order_of_time():
    backwards, store = build(lambda x: LSTM("r", x, 3, reverse=True), SEQUENCE)
    flipped, _ = build(lambda x: LSTM("r", x, 3), SEQUENCE[:, ::-1].copy(), store=store)
    np.testing.assert_allclose(backwards, flipped[:, ::-1], atol=1e-5)
    assert store["r/b"].numpy().tolist() == [0] * 3 + [1] * 3 + [0] * 6


def test_attention_to_a_context_with_a_mask():
    context = RANDOM.normal(size=(3, 7, 6)).astype(np.float32)
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


def test_embedding_refuses_numbers_that_are_not_whole():
    with pytest.raises(TypeError, match="whole numbers to look up, received float32"):
        build(lambda x: Embedding("e", x, 5, 2), SEQUENCE)


def test_batch_flatten_with_unknown_sizes():
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, None, 3])])
    def run(x):
        y = batch_flatten(x)
        shapes.append(y.shape.as_list())
        return y

    assert run(tf.zeros([2, 5, 3])).shape == [2, 15]
    assert shapes == [[None, None]]


def test_sizes_and_paddings_that_are_wrong():
    with pytest.raises(ValueError, match="expected a whole number or 2 of them, received 1.5"):
        build(lambda x: Conv2D("c", x, 3, 1.5), IMAGE)
    with pytest.raises(ValueError, match=r"or 2 of them, received \(1, 2, 3\)"):
        build(lambda x: MaxPooling("c", x, (1, 2, 3)), IMAGE)
    with pytest.raises(ValueError, match="'same' or 'valid' as padding, received 'full'"):
        build(lambda x: Conv2D("c", x, 3, 3, padding="full"), IMAGE)
    with pytest.raises(ValueError, match="split=3 must divide the input's channels"):
        build(lambda x: Conv2D("c", x, 3, 3, split=3), IMAGE)
    with pytest.raises(ValueError, match="'nearest' or 'bilinear', received 'cubic'"):
        build(lambda x: UpSampling("c", x, interpolation="cubic"), IMAGE)

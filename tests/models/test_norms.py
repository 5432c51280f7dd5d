import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.models.building import build, gradients
from towerpack._tensorflow import tf, v1
from towerpack.models import (
    BatchNorm,
    BatchRenorm,
    BNReLU,
    Conv2D,
    FullyConnected,
    LayerNorm,
    MaxPooling,
    SpectralNorm,
    argscope,
)
from towerpack.tower import (
    TowerContext,
    TowerFunc,
    TracedTower,
    VariableStore,
    freeze_variables,
    remap_variables,
)

EPSILON = 1e-5
IMAGE = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(2, 3, size=(4, 3, 5, 2)).astype(np.float32)


def normal(x, axes=(0, 1, 2), epsilon=EPSILON):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def unbiased(x):
    return x.reshape(-1, x.shape[-1]).var(axis=0, ddof=1)


def test_moving_averages_follow_with_the_unbiased_variance(image):
    output, store = build(lambda x: BatchNorm("bn", x, momentum=0.75), image)
    np.testing.assert_allclose(output, normal(image), atol=1e-4)
    np.testing.assert_allclose(store["bn/mean/EMA"], 0.25 * image.mean((0, 1, 2)), rtol=1e-5)
    wanted = 0.75 + 0.25 * unbiased(image)
    np.testing.assert_allclose(store["bn/variance/EMA"], wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [(6, 2), (4, 5, 2), (2, 3, 2, 2, 2)])
def test_other_ranks_follow_the_same_rule(shape):
    x = np.random.default_rng(0).normal(1, 2, size=shape).astype(np.float32)
    output, store = build(lambda x: BatchNorm("bn", x, momentum=0), x)
    np.testing.assert_allclose(output, normal(x, tuple(range(x.ndim - 1))), atol=1e-4)
    np.testing.assert_allclose(store["bn/variance/EMA"], unbiased(x), rtol=1e-4)


def test_inference_uses_the_averages_and_leaves_them(image):
    _, store = build(lambda x: BatchNorm("bn", x, momentum=0), image)
    mean, variance = store["bn/mean/EMA"].numpy(), store["bn/variance/EMA"].numpy()
    output, _ = build(lambda x: BatchNorm("bn", x), image + 1, is_training=False, store=store)
    np.testing.assert_allclose(output, (image + 1 - mean) / np.sqrt(variance + EPSILON), atol=1e-4)
    np.testing.assert_array_equal(store["bn/mean/EMA"], mean)


def test_frozen_in_training(image):
    store = VariableStore()
    build(lambda x: BatchNorm("bn", x), image, store=store, is_training=False)
    store["bn/mean/EMA"].assign([1.0, 2.0])
    weight = np.ones_like(image)
    output, dx, by_name = gradients(
        lambda x: BatchNorm("bn", x, training=False), image, weight, store
    )
    np.testing.assert_allclose(output, (image - [1, 2]) / np.sqrt(1 + EPSILON), rtol=1e-4)
    np.testing.assert_allclose(dx, weight / np.sqrt(1 + EPSILON), rtol=1e-4)
    np.testing.assert_allclose(by_name["bn/gamma"], output.sum((0, 1, 2)), rtol=1e-3)
    np.testing.assert_array_equal(store["bn/mean/EMA"], [1, 2])


def test_batch_statistics_in_an_inference_tower_update_nothing(image):
    output, store = build(lambda x: BatchNorm("bn", x, training=True), image, is_training=False)
    np.testing.assert_allclose(output, normal(image), atol=1e-4)
    np.testing.assert_array_equal(store["bn/mean/EMA"], [0, 0])


def test_skip_updates_nothing(image):
    output, store = build(lambda x: BatchNorm("bn", x, ema_update="skip"), image)
    np.testing.assert_allclose(output, normal(image), atol=1e-4)
    np.testing.assert_array_equal(store["bn/mean/EMA"], [0, 0])


@pytest.mark.parametrize("mode", ["default", "collection", "internal"])
def test_who_runs_the_update(image, mode):
    """The training step runs both kinds; who fetches just the output runs the internal one."""
    store = VariableStore()

    def tower(x):
        with TowerContext("", is_training=True, store=store):
            output = BatchNorm("bn", x, momentum=0, ema_update=mode)
        assert len(v1.get_collection(v1.GraphKeys.UPDATE_OPS)) == (0 if mode == "internal" else 2)
        return output

    pruned = v1.wrap_function(tower, [tf.TensorSpec(image.shape, tf.float32)])
    pruned.prune(pruned.inputs[0], pruned.outputs[0])(tf.constant(image))
    updated = store["bn/mean/EMA"].numpy().any()
    assert updated == (mode == "internal")
    tf.function(tower)(tf.constant(image))
    np.testing.assert_allclose(store["bn/mean/EMA"], image.mean((0, 1, 2)), rtol=1e-5)


def test_internal_updates_inside_a_branch(image):
    def tower(x):
        return tf.cond(
            tf.reduce_mean(x) > 0,
            lambda: BatchNorm("bn", x, momentum=0, ema_update="internal"),
            lambda: x,
        )

    store = VariableStore()
    build(tower, -np.abs(image), store=store)
    np.testing.assert_array_equal(store["bn/mean/EMA"], [0, 0])
    build(tower, np.abs(image), store=store)
    np.testing.assert_allclose(store["bn/mean/EMA"], np.abs(image).mean((0, 1, 2)), rtol=1e-5)


def test_only_the_first_tower_updates(image):
    store = VariableStore()
    with TowerContext("", is_training=True, store=store, index=1, total=2):
        output = BatchNorm("bn", tf.constant(image))
    np.testing.assert_allclose(output, normal(image), atol=1e-4)
    np.testing.assert_array_equal(store["bn/mean/EMA"], [0, 0])


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_ghost_batches_have_their_own_statistics(image, data_format):
    x = image if data_format == "NHWC" else np.moveaxis(image, 3, 1)
    output, store = build(
        lambda x: BatchNorm("bn", x, virtual_batch_size=2, momentum=0, data_format=data_format), x
    )
    if data_format == "NCHW":
        output = np.moveaxis(output, 1, 3)
    parts = image[:2], image[2:]
    np.testing.assert_allclose(output, np.concatenate([normal(p) for p in parts]), atol=1e-4)
    np.testing.assert_allclose(store["bn/mean/EMA"], image.mean((0, 1, 2)), rtol=1e-5)
    wanted = np.mean([unbiased(part) for part in parts], 0)
    np.testing.assert_allclose(store["bn/variance/EMA"], wanted, rtol=1e-4)


def test_a_small_epsilon_is_taken_as_it_is():
    x = np.full([2, 2, 2, 1], 1.0, np.float32)
    x[0] += 1e-4
    output, _ = build(lambda x: BatchNorm("bn", x, epsilon=1e-12), x)
    np.testing.assert_allclose(np.abs(output), 1, rtol=0.05)


def test_bnrelu_as_activation_and_in_argscope(image):
    with argscope(BatchNorm, momentum=0.5, epsilon=1e-3):
        output, store = build(lambda x: Conv2D("conv0", x, 3, 1, activation=BNReLU), image)
    names = ["W", "b", "bn/beta", "bn/gamma", "bn/mean/EMA", "bn/variance/EMA"]
    assert list(store.variables) == [f"conv0/{name}" for name in names]
    assert output.min() == 0
    convolved = image @ store["conv0/W"].numpy()[0, 0]
    expected = np.maximum(normal(convolved, epsilon=1e-3), 0)
    np.testing.assert_allclose(output, expected, atol=1e-3)
    np.testing.assert_allclose(
        store["conv0/bn/mean/EMA"], convolved.mean((0, 1, 2)) / 2, rtol=1e-3, atol=1e-4
    )


def test_remapped_and_frozen_variables(image):
    """Batch norm keeps its averages also where every variable that is read is changed."""

    def tower(x):
        with remap_variables(lambda variable: tf.convert_to_tensor(variable) * 2):
            return BatchNorm("bn", x, momentum=0)

    output, store = build(tower, image)
    np.testing.assert_allclose(output, 2 * normal(image), atol=1e-3)
    np.testing.assert_allclose(store["bn/mean/EMA"], image.mean((0, 1, 2)), rtol=1e-5)

    def frozen(x):
        with freeze_variables(skip_collection=True):
            return BatchNorm("bn", x, momentum=0)

    assert not build(frozen, image)[1].trainable()


def test_predictor_of_a_trained_tower(image):
    store = VariableStore()
    tower = TowerFunc(
        lambda x: BatchNorm("bn", x, momentum=0),
        [tf.TensorSpec([None, *image.shape[1:]], tf.float32, "x")],
    )
    build(tower.func, image, store=store)
    (output,) = TracedTower(tower, store).function(["x"], ["bn/output"])(image)
    np.testing.assert_allclose(output, normal(image), atol=0.1)


def test_messages():
    x = tf.zeros([3, 2])
    with TowerContext("", is_training=True, store=VariableStore()):
        with pytest.raises(ValueError, match="ema_update to be one of .* received 'no'"):
            BatchNorm("a", x, ema_update="no")
        with pytest.raises(ValueError, match="virtual_batch_size=2 must divide the batch, .* 3"):
            BatchNorm("b", x, virtual_batch_size=2)
        with pytest.raises(ValueError, match="expected axis 1 or -1, received 2"):
            BatchNorm("c", tf.zeros([1, 2, 3, 4]), axis=2)
        with pytest.raises(TypeError, match="expected True, False or None as training"):
            BatchNorm("d", x, training=tf.constant(True))
        with pytest.raises(ValueError, match="smaller.*larger"):
            BatchNorm("e", x, virtual_batch_size=1, sync_statistics=True)
    with TowerContext("", is_training=True, store=VariableStore(), total=2):
        with pytest.raises(ValueError, match="towers that run together"):
            BatchNorm("a", x, sync_statistics="nccl")


def test_renorm_within_the_limits_is_the_inference_result(image):
    """Without limits, training normalizes exactly as inference would."""
    store = VariableStore()
    build(lambda x: BatchRenorm("bn", x, 3.0, 5.0), image, store=store, is_training=False)
    store["bn/mean/EMA"].assign([1.5, 2.5])
    store["bn/variance/EMA"].assign([8.0, 11.0])
    expected = (image - [1.5, 2.5]) / np.sqrt(np.array([8.0, 11.0]) + EPSILON)
    trained, _ = build(lambda x: BatchRenorm("bn", x, 1e3, 1e3), image, store=store)
    np.testing.assert_allclose(trained, expected, atol=1e-4)
    wanted = 0.9 * np.array([8.0, 11.0]) + 0.1 * unbiased(image)
    np.testing.assert_allclose(store["bn/variance/EMA"], wanted, rtol=1e-5)


@pytest.mark.parametrize(("rmax", "dmax"), [(1.5, 0.5), (100.0, 100.0)])
def test_renorm_limits_and_gradients(image, rmax, dmax):
    """R and d by hand, and gradients that take both as constants."""
    store = VariableStore()
    build(lambda x: BatchRenorm("bn", x, rmax, dmax), image, store=store, is_training=False)
    axes = (0, 1, 2)
    deviation = np.sqrt(image.var(axes) + EPSILON)
    r = np.clip(deviation / np.sqrt(1 + EPSILON), 1 / rmax, rmax)
    d = np.clip(image.mean(axes) / np.sqrt(1 + EPSILON), -dmax, dmax)
    weight = np.random.default_rng(1).normal(size=image.shape).astype(np.float32)

    def by_hand(x):
        mean, variance = tf.nn.moments(x, axes)
        return (x - mean) / tf.sqrt(variance + EPSILON) * r + d

    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(image))
        cost = tf.reduce_sum(by_hand(x) * weight)
    output, dx, _ = gradients(lambda x: BatchRenorm("bn", x, rmax, dmax), image, weight, store)
    np.testing.assert_allclose(output, by_hand(tf.constant(image)), atol=1e-4)
    np.testing.assert_allclose(dx, tape.gradient(cost, x), atol=1e-4)


def test_renorm_begins_as_batch_norm(image):
    renorm, _ = build(lambda x: BatchRenorm("bn", x, rmax=1.0, dmax=0.0), image)
    np.testing.assert_allclose(renorm, normal(image), atol=1e-4)


MIRRORED = Path(__file__).with_name("mirrored_batch_norm.py")


@pytest.fixture(scope="module")
def mirrored():
    """What two replicas on logical CPUs gave; devices are chosen once in a process' life."""
    run = subprocess.run([sys.executable, MIRRORED], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_synchronized_over_replicas_equals_the_whole_batch(mirrored):
    whole, replicas = mirrored["whole"], mirrored["synchronized"]
    np.testing.assert_allclose(replicas["output"], whole["output"], atol=1e-4)
    np.testing.assert_allclose(replicas["dx"], whole["dx"], atol=1e-4)
    np.testing.assert_allclose(replicas["mean"], whole["mean"], rtol=1e-4)
    np.testing.assert_allclose(replicas["variance"], whole["variance"], rtol=1e-4)


def test_replicas_apart_keep_the_first_ones_averages(mirrored):
    x = np.array(mirrored["x"])
    first = x[: len(x) // 2]
    np.testing.assert_allclose(mirrored["apart"]["mean"], first.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(mirrored["apart"]["variance"], unbiased(first), rtol=1e-4)
    expected = np.concatenate([normal(first), normal(x[len(x) // 2 :])])
    np.testing.assert_allclose(mirrored["apart"]["output"], expected, atol=1e-3)


def test_averages_of_replicas_serve_inference(mirrored):
    apart, x = mirrored["apart"], np.array(mirrored["x"])
    expected = (x - apart["mean"]) / np.sqrt(np.array(apart["variance"]) + EPSILON)
    np.testing.assert_allclose(apart["inference"], expected, atol=1e-3)


def test_layer_norm_takes_all_axes_of_a_datapoint():
    output, _ = build(lambda x: LayerNorm("l", x), IMAGE)
    flat = IMAGE.reshape(2, -1)
    expected = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(output.reshape(2, -1), expected, atol=1e-4)


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

"""Inference on one's own: build under a `TowerContext`, load a checkpoint, run."""

import numpy as np
import pytest

from tests.export.small_net import SmallNet, small_config, small_images, small_weights
from towerpack._tensorflow import tf, v1
from towerpack.checkpoint import SmartInit, save_checkpoint
from towerpack.models import FullyConnected
from towerpack.predict import OfflinePredictor
from towerpack.tower import TowerContext, get_current_tower_context

IMAGES = tf.constant(small_images(4))
LABELS = tf.zeros([4], tf.int32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("run") / "model-7"
    save_checkpoint(small_weights(), prefix, step=7)
    return prefix


@pytest.fixture(scope="module")
def expected():
    return OfflinePredictor(small_config(output_names=["cost"], input_names=["image", "label"]))(
        IMAGES, LABELS
    )[0]


def test_eagerly(checkpoint, expected):
    context = TowerContext("", is_training=False)
    with context:
        assert get_current_tower_context() is context and not context.is_training
        SmallNet().build_graph(IMAGES, LABELS)
    report = SmartInit(checkpoint).load(context.store.saved())
    assert not report.missing
    with context:
        cost = SmallNet().build_graph(IMAGES, LABELS)
    np.testing.assert_allclose(cost, expected, rtol=1e-5)


def test_in_a_function_that_makes_the_context(checkpoint, expected):
    made = []

    @tf.function(input_signature=SmallNet().inputs())
    def cost(image, label):
        with TowerContext("", is_training=False) as context:
            made.append(context)
            return SmallNet().build_graph(image, label)

    cost.get_concrete_function()
    SmartInit(checkpoint).load(made[0].store.saved())
    np.testing.assert_allclose(cost(IMAGES, LABELS), expected, rtol=1e-5)
    assert len(made) == 1


def test_in_a_graph_with_tensorflows_own_saver(checkpoint, expected):
    with tf.Graph().as_default(), v1.Session() as session:
        inputs = [v1.placeholder(spec.dtype, spec.shape) for spec in SmallNet().inputs()]
        with TowerContext("", is_training=False) as context:
            cost = SmallNet().build_graph(*inputs)
        variables = context.store.saved()
        with pytest.raises(RuntimeError, match="train.Saver"):
            SmartInit(checkpoint).load(variables)
        v1.train.Saver(variables).restore(session, str(checkpoint))
        arrays = [IMAGES.numpy(), LABELS.numpy()]
        received = session.run(cost, dict(zip(inputs, arrays, strict=True)))
    np.testing.assert_allclose(received, expected, rtol=1e-5)


def test_each_context_has_its_own_variables():
    values = []
    for _ in range(2):
        with TowerContext("", is_training=False) as context:
            FullyConnected("fc", tf.ones([1, 3]), 2)
        values.append(context.store["fc/W"].numpy())
    assert not np.array_equal(*values)

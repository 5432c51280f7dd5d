import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.optimizer import SGD, apply_grad_processors
from towerpack.tower import TowerContext, VariableStore
from towerpack.tower.gradproc import (
    CheckGradient,
    FilterNoneGrad,
    GlobalNormClip,
    MapGradient,
    PrintGradient,
    ScaleGradient,
    SummaryGradient,
    dense,
)

GRADIENTS = {"conv0/W": [3.0, 0.0], "conv0/b": [4.0], "fc/W": [0.0]}


@pytest.fixture
def store():
    store = VariableStore()
    for name, value in GRADIENTS.items():
        store.make(name, lambda value=value: tf.zeros(len(value)), trainable=True)
    return store


def process(store, processor, gradients=GRADIENTS):
    """The processed gradients by name."""
    with store.scope():
        pairs = [
            (None if value is None else tf.constant(value), store[name])
            for name, value in gradients.items()
        ]
        return {store.name_of(v): np.asarray(g).tolist() for g, v in processor.process(pairs)}


def test_the_global_norm_is_clipped_for_all_together(store):
    clipped = process(store, GlobalNormClip(1.0))
    assert clipped["conv0/W"] == pytest.approx([0.6, 0.0])
    assert clipped["conv0/b"] == pytest.approx([0.8])
    assert process(store, GlobalNormClip(10.0)) == GRADIENTS


def test_a_map_acts_where_the_whole_name_matches_and_none_drops(store):
    mapped = process(store, MapGradient(lambda g: g * 2, "conv0/.*"))
    assert mapped == {"conv0/W": [6.0, 0.0], "conv0/b": [8.0], "fc/W": [0.0]}
    assert process(store, MapGradient(lambda g: g * 2, "conv0")) == GRADIENTS
    by_variable = MapGradient(lambda g, v: None if v.shape[0] == 1 else g)
    assert list(process(store, by_variable)) == ["conv0/W"]


def test_the_first_matching_factor_counts_and_zero_drops(store):
    scaled = process(store, ScaleGradient([("conv0/W", 10), ("conv0/.*", 0)]))
    assert scaled == {"conv0/W": [30.0, 0.0], "fc/W": [0.0]}
    assert process(store, ScaleGradient(("fc/W", 5)))["conv0/b"] == [4.0]
    with pytest.raises(ValueError, match="leaves no variable"):
        process(store, ScaleGradient((".*", 0)))


def test_variables_without_gradient_are_filtered(store):
    assert list(process(store, FilterNoneGrad(), {**GRADIENTS, "fc/W": None})) == [
        "conv0/W",
        "conv0/b",
    ]


def test_F14_a_gradient_that_is_not_finite_is_named(store):
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient of conv0/b"):
        process(store, CheckGradient(), {**GRADIENTS, "conv0/b": [np.nan]})


def test_printing_changes_nothing(store, capfd):
    assert process(store, PrintGradient("conv0/W")) == GRADIENTS
    assert "gradient of conv0/W mean 1.5 norm 3" in capfd.readouterr().err


ROWS = [3, 0, 3, 3]  # a row that occurs several times: the sum of its parts is its gradient
PROCESSORS = {
    "filter": FilterNoneGrad(),
    "clip": GlobalNormClip(0.5),
    "map": MapGradient(lambda g: g / tf.sqrt(1 + g**2)),
    "map by norm": MapGradient(lambda g, v: tf.clip_by_norm(g, 0.5)),
    "map of all": MapGradient(lambda g: g - tf.reduce_mean(g)),
    "scale": ScaleGradient([("table", 0.25), ("fc/W", 3)]),
    "check": CheckGradient(),
    "summary": SummaryGradient(),
    "print": PrintGradient(),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", PROCESSORS)
def test_gradients_of_embeddings_are_processed_like_dense_ones(store, name, jit):
    if jit and name == "print":
        pytest.skip("XLA cannot print")
    table = store.make("table", lambda: tf.zeros([5, 2]), trainable=True)
    values = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    whole = np.zeros((5, 2), np.float32)
    np.add.at(whole, ROWS, values)

    @tf.function(jit_compile=jit, autograph=False)
    def processed(gradient):
        with TowerContext("", is_training=True, store=store) as context:
            pairs = PROCESSORS[name].process(
                [(gradient, table), (tf.constant([2.0]), store["fc/W"])]
            )
            shown = [summary.tensor for summary in context.summaries]
        return [dense(*pair) for pair in pairs], shown

    sparse = tf.IndexedSlices(tf.constant(values), tf.constant(ROWS), tf.constant([5, 2]))
    received, expected = processed(sparse), processed(tf.constant(whole))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), received, expected)


def test_sparse_gradients_stay_sparse_where_the_result_is_the_same(store):
    table = store.make("table", lambda: tf.zeros([5, 2]), trainable=True)
    gradient = tf.IndexedSlices(tf.ones([4, 2]), tf.constant(ROWS), tf.constant([5, 2]))
    with store.scope():
        for name in ("filter", "clip", "scale", "check"):
            ((processed, _),) = PROCESSORS[name].process([(gradient, table)])
            assert isinstance(processed, tf.IndexedSlices), name


def test_F14_a_sparse_gradient_that_is_not_finite_is_named(store):
    table = store.make("table", lambda: tf.zeros([5, 2]), trainable=True)
    gradient = tf.IndexedSlices(tf.constant([[np.inf, 0]]), tf.constant([1]), tf.constant([5, 2]))
    with (
        store.scope(),
        pytest.raises(tf.errors.InvalidArgumentError, match="gradient of table"),
    ):
        CheckGradient().process([(gradient, table)])


def test_processors_run_in_order_before_the_optimizer(store):
    optimizer = apply_grad_processors(SGD(1.0), [MapGradient(lambda g: g + 1), GlobalNormClip(1e9)])
    with store.scope():
        optimizer.apply_gradients([(tf.constant([1.0]), store["fc/W"])])
    assert store["fc/W"].numpy() == [-2.0]
    with pytest.raises(TypeError, match="expected gradient processors"):
        apply_grad_processors(SGD(1.0), [lambda g: g])

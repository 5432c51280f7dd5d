import numpy as np
import pytest

from tests.export.small_net import small_config, small_images
from towerpack._tensorflow import tf
from towerpack.export import ModelExporter, load_graph
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.tower import TowerContext, VariableStore


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    directory = tmp_path_factory.mktemp("foreign")
    exporter = ModelExporter(small_config())
    exporter.export_compact(directory / "model.pb")
    exporter.export_compact(directory / "model.pbtxt")
    exporter.export_serving(directory / "saved")
    return directory


def predictor(tower, output="y", **options):
    spec = tf.TensorSpec([None, 8, 8, 1], tf.float32, "x")
    return OfflinePredictor(
        PredictConfig(tower_func=tower, input_signature=[spec], output_names=[output], **options)
    )


def expected(images, output="prob"):
    return OfflinePredictor(small_config(output_names=[output]))(images)[0]


@pytest.mark.parametrize("name", ["model.pb", "model.pbtxt", "saved"])
@pytest.mark.parametrize("trainable", [False, True])
def test_a_foreign_graph_computes_the_same_in_a_tower(exports, name, trainable):
    def tower(x):
        (prob,) = load_graph(
            exports / name, {"image": x * 2}, ["prob"], trainable=trainable, name="net"
        )
        tf.identity(prob, name="y")

    predict = predictor(tower)
    images = small_images()
    np.testing.assert_allclose(predict(images)[0], expected(images * 2), atol=1e-5)
    assert bool(predict.store.trainable()) == trainable
    assert all(name.startswith("net/") for name in predict.store.trainable())


def test_an_intermediate_tensor_can_be_replaced_and_read(exports):
    def tower(x):
        features = load_graph(exports / "model.pb", {"image": x}, ["conv/Relu"])[0]
        prob = load_graph(exports / "model.pb", {"conv/Relu:0": features}, ["prob"], name="rest")
        tf.identity(prob[0], name="y")

    images = small_images()
    np.testing.assert_allclose(predictor(tower)(images)[0], expected(images), atol=1e-5)


def test_trainable_weights_get_gradients_and_a_pattern_chooses_them(exports):
    store = VariableStore()

    @tf.function(autograph=False)
    def gradients(x):
        with TowerContext("", is_training=True, store=store):
            with tf.GradientTape() as tape:
                (prob,) = load_graph(
                    exports / "model.pb", {"image": x}, ["prob"], trainable="conv/", name="net"
                )
                cost = tf.reduce_sum(prob[:, 0])
            return tape.gradient(cost, list(store.trainable().values()))

    found = gradients(tf.constant(small_images()))
    assert store.trainable() and all(name.startswith("net/conv/") for name in store.trainable())
    assert all(np.abs(gradient).sum() > 0 for gradient in found)


def test_variables_of_a_saved_model_keep_their_names(exports):
    def tower(x):
        load_graph(exports / "saved", {"image": x}, ["prob"], trainable=True, name="net")
        tf.identity(x, name="y")

    assert {"net/conv/W", "net/fc/b"} <= set(predictor(tower).store.trainable())


def test_names_that_are_not_there_and_inputs_that_are_missing(exports):
    def wrong(x):
        load_graph(exports / "model.pb", {"picture": x}, ["prob"])

    with pytest.raises(KeyError, match=r"no tensors \['picture:0'\]; `towerpack export show"):
        predictor(wrong)

    def missing(x):
        load_graph(exports / "model.pb", {}, ["prob"])

    with pytest.raises(ValueError, match=r"depend on its inputs \['image'\]"):
        predictor(missing)

    def nothing(x):
        load_graph(exports / "model.pb", {"image": x}, ["prob"], trainable="nowhere")

    with pytest.raises(ValueError, match="trainable='nowhere' matches none"):
        predictor(nothing)


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="no graph"):
        load_graph(tmp_path / "x.pb", {}, ["y"])
    with pytest.raises(ValueError, match="a SavedModel, received"):
        load_graph(tmp_path, {}, ["y"])

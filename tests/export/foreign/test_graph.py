import numpy as np
import pytest
from typer.testing import CliRunner

from tests.export.small_net import small_config, small_images
from towerpack._tensorflow import tf, v1
from towerpack.cli import app
from towerpack.export import ModelExporter, list_graph, load_graph
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.tower import TowerContext, VariableStore

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


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


@pytest.mark.parametrize("name", ["model.pb", "saved"])
@pytest.mark.parametrize("trainable", [False, True])
def test_tensors_of_the_graph_are_found_in_the_tower(exports, name, trainable):
    def tower(x):
        load_graph(exports / name, {"image": x}, ["prob"], name="net", trainable=trainable)

    images = small_images()
    (relu,) = [row[0] for row in list_graph(exports / name).nodes if row[0].endswith("conv/Relu")]
    found = predictor(tower, f"net/{relu}")(images)[0]
    np.testing.assert_allclose(found, expected(images, "conv/Relu"), atol=1e-5)


def test_outside_of_a_tower(exports):
    images = small_images()
    (prob,) = load_graph(exports / "model.pb", {"image": images}, ["prob"])
    np.testing.assert_allclose(prob, expected(images), atol=1e-5)


def test_outputs_that_need_no_input_and_outputs_without_gradients(tmp_path):
    def numbers(x):
        y = tf.identity(tf.constant([1.0, 2.0]) * x, name="y")
        tf.argmax(y, axis=1, name="place")
        tf.identity(x[0, 0], name="first")

    spec = tf.TensorSpec([None, 2], tf.float32, "x")
    config = PredictConfig(
        tower_func=numbers, input_signature=[spec], output_names=["y", "place", "first"]
    )
    ModelExporter(config).export_compact(tmp_path / "m.pb")
    (const,) = [row[0] for row in list_graph(tmp_path / "m.pb").nodes if row[2] == "float32 [2]"]

    @tf.function(autograph=False)
    def step(x):
        with TowerContext("", is_training=True, store=VariableStore()), tf.GradientTape() as tape:
            tape.watch(x)
            y, place = load_graph(tmp_path / "m.pb", {"x": x}, ["y", "place"])
            (known,) = load_graph(tmp_path / "m.pb", {}, [const], name="other")
            cost = tf.reduce_sum(y * known)
        return tape.gradient(cost, x), place

    gradient, place = step(tf.constant([[3.0, 1.0]]))
    assert gradient.numpy().tolist() == [[1.0, 4.0]] and place.numpy().tolist() == [0]


def test_gradients_reach_what_is_before_a_frozen_graph(exports):
    @tf.function(autograph=False)
    def cost_and_gradient(x):
        with TowerContext("", is_training=True, store=VariableStore()), tf.GradientTape() as tape:
            tape.watch(x)
            (prob,) = load_graph(exports / "model.pb", {"image": x * 2}, ["prob"])
            cost = tf.reduce_sum(prob[:, 0])
        return cost, tape.gradient(cost, x)

    images = tf.constant(small_images())
    _, gradient = cost_and_gradient(images)
    step = 1e-2 * gradient  # along it the cost changes most
    ahead, behind = cost_and_gradient(images + step)[0], cost_and_gradient(images - step)[0]
    along = 2 * tf.reduce_sum(gradient * step)
    np.testing.assert_allclose(ahead - behind, along, rtol=0.02)


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


@pytest.mark.parametrize("resource", [False, True])
def test_a_saved_model_of_tensorflow_1(resource, tmp_path):
    """Its keys have nothing to do with the names of its tensors."""
    x = np.array([[1.0, 2.0]], np.float32)
    with tf.Graph().as_default(), v1.Session() as session:
        first = v1.placeholder(tf.float32, [None, 2], "fed")
        second = v1.placeholder(tf.float32, [None, 2], "fed_first")
        weight = v1.get_variable("weight", [2, 3], use_resource=resource)
        y = tf.identity(tf.matmul(first - 3 * second, weight), name="out")
        session.run(v1.global_variables_initializer())
        product = session.run(y, {first: x, second: x * 0})
        builder = v1.saved_model.Builder(str(tmp_path / "old"))
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def(
            {"first": info(first), "second": info(second)}, {"product": info(y)}
        )
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()

    def tower(x):
        (y,) = load_graph(tmp_path / "old", {"first": x, "second": x}, ["product"], trainable=True)
        tf.identity(y, name="y")

    spec = tf.TensorSpec([None, 2], tf.float32, "x")
    predict = OfflinePredictor(
        PredictConfig(tower_func=tower, input_signature=[spec], output_names=["y"])
    )
    np.testing.assert_allclose(predict(x)[0], -2 * product, rtol=1e-5)
    assert list(predict.store.trainable()) == ["graph/weight"]


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


# Graphs that others saved: MetaGraphs of TensorFlow 1, SavedModels of TensorFlow and Keras.


def build_training_graph(resource):
    """As a script of TensorFlow 1 would: a placeholder, a model, an optimizer."""
    x = v1.placeholder(tf.float32, [None, 4], "x")
    w = v1.get_variable("fc/w", [4, 3], use_resource=resource)
    b = v1.get_variable("fc/b", [3], use_resource=resource)
    y = tf.nn.softmax(x @ w + b, name="prob")
    v1.train.AdamOptimizer().minimize(tf.reduce_mean(y[:, 0]))
    return x, y


@pytest.fixture(params=[True, False], ids=["resource", "ref"])
def meta(request, tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = build_training_graph(request.param)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "model-7"))
        return tmp_path / "model-7.meta", session.run(y, {x: X})


def test_a_meta_file_with_its_checkpoint(meta):
    path, expected = meta
    (received,) = load_graph(path, {"x": X}, ["prob"])
    np.testing.assert_allclose(received, expected, rtol=1e-6)
    listing = list_graph(path)
    assert ("x", "Placeholder", "float32 [?x4]") in listing.inputs
    assert "fc/w" in {name for name, _, _ in listing.nodes}
    result = CliRunner().invoke(app, ["export", "show", str(path)])
    assert result.exit_code == 0 and "MatMul" in result.output


def test_a_meta_file_is_trained_as_a_part_of_a_tower(meta):
    path, expected = meta
    with TowerContext("", is_training=True) as context:
        (received,) = load_graph(path, {"x": tf.constant(X)}, ["prob"], trainable="fc/")
    np.testing.assert_allclose(received, expected, rtol=1e-6)
    assert set(context.store.trainable()) == {"graph/fc/w", "graph/fc/b"}


def test_what_a_meta_file_lacks_is_named(meta):
    path, _ = meta
    with pytest.raises(KeyError, match="has no tensors"):
        load_graph(path, {"x": X}, ["porb"])
    with pytest.raises(ValueError, match=r"depend on its inputs \['x'\]"):
        load_graph(path, {}, ["prob"])
    path.with_suffix(".index").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected model-7\.index"):
        load_graph(path, {"x": X}, ["prob"])


@pytest.mark.filterwarnings("ignore")  # of a format that TensorFlow 2 still writes
def test_a_saved_model_that_simple_save_wrote(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = build_training_graph(resource=True)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "m"), {"x": x}, {"prob": y})
        expected = session.run(y, {x: X})
    (received,) = load_graph(tmp_path / "m", {"x": X}, ["prob"])
    np.testing.assert_allclose(received, expected, rtol=1e-6)
    assert [row[0] for row in list_graph(tmp_path / "m").outputs] == ["prob"]


def test_a_saved_model_of_keras(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(3)])
    model.export(str(tmp_path / "m"), verbose=False)
    listing = list_graph(tmp_path / "m")
    (received,) = load_graph(tmp_path / "m", {listing.inputs[0][0]: X}, [listing.outputs[0][0]])
    np.testing.assert_allclose(received, model(X), rtol=1e-5)


class Scale(tf.Module):
    def __init__(self):
        super().__init__()
        self.factor = tf.Variable(3.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def scale(self, x):
        return {"y": x * self.factor}


def test_a_saved_model_with_one_signature_of_another_name(tmp_path):
    module = Scale()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures={"scale": module.scale})
    (received,) = load_graph(tmp_path / "m", {"x": X}, ["y"])
    np.testing.assert_allclose(received, X * 3)


def test_a_saved_model_without_signatures_is_refused(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "m"))
    with pytest.raises(KeyError, match="no signature 'serving_default'"):
        list_graph(tmp_path / "m")


def test_a_damaged_saved_model_is_refused_by_name(tmp_path):
    module = Scale()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.scale)
    for damaged in ("saved_model.pb", "variables/variables.index"):
        content = (tmp_path / "m" / damaged).read_bytes()
        (tmp_path / "m" / damaged).write_bytes(content[:20])
        with pytest.raises((ValueError, OSError), match=str(tmp_path / "m")):
            list_graph(tmp_path / "m")
        (tmp_path / "m" / damaged).write_bytes(content)

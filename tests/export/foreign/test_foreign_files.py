"""Graphs that others saved: MetaGraphs of TensorFlow 1, SavedModels of TensorFlow and Keras."""

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack._tensorflow import tf, v1
from towerpack.cli import app
from towerpack.export import list_graph, load_graph

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


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
    from towerpack.tower import TowerContext

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
def test_a_saved_model_of_tensorflow_1(tmp_path):
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

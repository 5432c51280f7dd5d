import numpy as np
import pytest

from tests.export.small_net import small_config, small_images
from towerpack._tensorflow import tf
from towerpack.export import ModelExporter, Signature
from towerpack.export.frozen_graph import fold_constants, open_graph, read_graph
from towerpack.predict import OfflinePredictor


def nodes(path):
    return {node.name: node.op for node in read_graph(path).node}


def test_it_is_pruned_and_folded_and_keeps_the_towers_names(tmp_path):
    report = ModelExporter(small_config()).export_compact(tmp_path / "model.pb")
    found = nodes(report.path)
    assert found["image"] == "Placeholder" and found["prob"] == "Softmax"
    assert "conv/Relu" in found
    assert not {"label", "cost", "class", "auxiliary/output"} & set(found)
    operations = set(found.values())
    assert not [name for name in operations if "Variable" in name or "Resource" in name]
    unfolded = ModelExporter(small_config()).export_compact(tmp_path / "x.pb", optimize=False)
    assert len(found) < len(nodes(unfolded.path))


def test_text_and_binary_hold_the_same_graph(tmp_path):
    exporter = ModelExporter(small_config())
    for name in ("model.pb", "model.pbtxt"):
        exporter.export_compact(tmp_path / name)
    assert nodes(tmp_path / "model.pb") == nodes(tmp_path / "model.pbtxt")
    assert (tmp_path / "model.pbtxt").read_text().startswith("node {")


def test_any_tensor_of_the_graph_by_name(tmp_path):
    config = small_config()
    report = ModelExporter(config).export_compact(tmp_path / "model.pb")
    run = open_graph(read_graph(report.path), {"x": "image:0"}, {"y": "conv/Relu:0"})
    expected = OfflinePredictor(small_config(output_names=["conv/Relu"]))(small_images())[0]
    np.testing.assert_allclose(run({"x": small_images()})["y"], expected, atol=1e-5)


def test_control_flow_and_its_variables_are_frozen_too(tmp_path):
    def tower(x):
        weight = tf.compat.v1.get_variable("w", [2], initializer=tf.compat.v1.ones_initializer())
        _, total = tf.while_loop(
            lambda i, _: i < 3, lambda i, total: (i + 1, total + weight * x), [0, x]
        )
        return tf.identity(total, name="y")

    config = small_config(
        tower_func=tower,
        input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")],
        input_names=["x"],
        output_names=["y"],
        session_init={"w": np.array([2.0, 3.0], np.float32)},
    )
    report = ModelExporter(config).export_compact(tmp_path / "model.pb")
    run = open_graph(read_graph(report.path), {"x": "x:0"}, {"y": "y:0"})
    np.testing.assert_allclose(run({"x": np.ones((1, 2))})["y"], [[7, 10]])


def test_a_key_that_another_node_has_is_refused(tmp_path):
    signature = Signature(["image"], {"conv/Relu": "prob"})
    with pytest.raises(ValueError, match="choose another"):
        ModelExporter(small_config(), signature=signature).export_compact(tmp_path / "x.pb")


def test_a_file_that_is_no_graph(tmp_path):
    (tmp_path / "x.pbtxt").write_text("what {")
    with pytest.raises(ValueError, match="expected a GraphDef in"):
        read_graph(tmp_path / "x.pbtxt")


def graph_of(build):
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def kinds(graph_def):
    return sorted(node.op for node in graph_def.node)


def test_what_depends_on_constants_only_is_one_constant():
    def build():
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        a, b = tf.split(tf.constant([1.0, 2.0]) * 3 + 1, 2)
        tf.add(x * a, b, name="y")

    folded = fold_constants(graph_of(build), ["y:0"])
    assert kinds(folded) == ["AddV2", "Const", "Const", "Mul", "Placeholder"]
    assert open_graph(folded, {"x": "x:0"}, {"y": "y:0"})({"x": np.ones(1)})["y"] == [11]


def test_randomness_and_control_inputs_stay():
    def build():
        with tf.control_dependencies([tf.compat.v1.placeholder(tf.float32, [], "x").op]):
            waits = tf.constant(1.0) + tf.constant(2.0)
        tf.add(waits, tf.random.uniform([], seed=1), name="y")

    folded = fold_constants(graph_of(build), ["y:0"])
    assert "RandomUniform" in kinds(folded) and "Placeholder" in kinds(folded)


def test_what_would_grow_much_stays_an_operation():
    def build():
        tf.multiply(tf.zeros([1000, 1000]), tf.compat.v1.placeholder(tf.float32, [], "x"), name="y")

    folded = fold_constants(graph_of(build), ["y:0"])
    assert folded.ByteSize() < 10_000


def test_an_output_that_is_constant_itself():
    folded = fold_constants(graph_of(lambda: tf.add(1.0, tf.constant(2.0), name="y")), ["y:0"])
    assert kinds(folded) == ["Const"] and folded.node[0].name == "y"

import numpy as np

from towerpack._tensorflow import tf
from towerpack.export.fold_constants import fold_constants
from towerpack.export.frozen_graph import open_graph


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

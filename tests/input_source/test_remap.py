import numpy as np
import pytest

from towerpack._tensorflow import tf, v1
from towerpack.dataflow import DataFromList
from towerpack.input_source import PlaceholderInput, QueueInput, remap_input_source

SPECS = [tf.TensorSpec([], tf.float32, "a"), tf.TensorSpec([], tf.int32, "b")]


def test_inputs_without_a_component_are_fed():
    source = remap_input_source(QueueInput(DataFromList([[np.int32(7)]])), ["b"])
    source.setup(SPECS)
    graph = v1.wrap_function(source.get_input_tensors, [])
    a = graph.graph.get_tensor_by_name("a:0")
    step = graph.prune([a], graph.outputs)
    source.start()
    assert [float(value) for value in step(tf.constant(0.5))] == [0.5, 7]
    with pytest.raises(ValueError, match=r"received none of \['a'\]"):
        source.next()
    source.close()


def test_names_that_are_no_inputs_are_refused():
    flow = QueueInput(DataFromList([[1]]))
    with pytest.raises(ValueError, match=r"inputs \['a', 'b'\], received also \['c'\]"):
        remap_input_source(flow, ["c"]).setup(SPECS)
    with pytest.raises(ValueError, match="each name once"):
        remap_input_source(flow, ["a", "a"])


def test_placeholders_have_the_names_of_the_inputs():
    source = PlaceholderInput()
    source.setup(SPECS)
    graph = v1.wrap_function(source.get_input_tensors, [])
    assert [tensor.name for tensor in graph.outputs] == ["a:0", "b:0"]
    with pytest.raises(RuntimeError, match="only in a graph"):
        source.get_input_tensors()

"""Whole networks: V1 files, phases, inputs, names, unknown layers."""

import logging

import numpy as np
import pytest

from tests.export.foreign import caffe_files as caffe
from tests.export.foreign.test_caffe_layers import INPUT, X, check, layer, random, run
from towerpack.export import caffe_to_tower, load_caffe
from towerpack.export.foreign.caffe import read_caffemodel, read_prototxt

OLD = """
name: "old"
input: "data" input_dim: 1 input_dim: 4 input_dim: 7 input_dim: 6
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "gaussian" std: 0.01 } } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
layers { name: "pool" type: POOLING bottom: "conv" top: "pool"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layers { name: "fc" type: INNER_PRODUCT bottom: "pool" top: "fc"
  inner_product_param { num_output: 5 } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "fc" bottom: "label" top: "loss"
  include { phase: TRAIN } }
layers { name: "prob" type: SOFTMAX bottom: "fc" top: "prob" }
"""


def test_a_network_of_version_one(tmp_path):
    w, b = random(3, 4, 3, 3), random(3)
    fw, fb = random(1, 1, 5, 3 * 3 * 2), random(5)
    blobs = {"conv": [w, b], "fc": [fw, fb]}
    received = run(tmp_path, OLD, blobs, "prob/output")
    features = caffe.pool(np.maximum(caffe.convolve(X, w, b), 0), "MAX", 2, 2)
    expected = caffe.softmax(features.reshape(2, -1) @ fw.reshape(5, -1).T + fb)
    check(received, expected)


def test_the_dictionary_of_weights(tmp_path):
    w, fw = random(3, 4, 3, 3), random(5, 18)
    files = caffe.write_net(tmp_path, OLD, {"conv": [w, random(3)], "fc": [fw, random(5)]})
    weights = load_caffe(*files)
    assert {name: value.shape for name, value in weights.items()} == {
        "conv/W": (3, 3, 4, 3),
        "conv/b": (3,),
        "fc/W": (18, 5),
        "fc/b": (5,),
    }
    np.testing.assert_array_equal(weights["conv/W"][1, 2, 3, 0], w[0, 3, 1, 2])
    # The second place of the second channel: CHW in Caffe, HWC here.
    np.testing.assert_array_equal(weights["fc/W"][1 * 3 + 1], fw[:, 1 * 6 + 1])


def test_phases_inputs_and_layers_of_training(tmp_path):
    text = """
    layer { name: "in" type: "Input" top: "image"
      input_param { shape { dim: 1 dim: 3 dim: 5 dim: 5 } } }
    layer { name: "data" type: "Data" top: "image" include { phase: TRAIN } }
    layer { name: "d" type: "Dropout" bottom: "image" top: "image" exclude { phase: TEST } }
    layer { name: "r" type: "ReLU" bottom: "image" top: "y" }
    layer { name: "accuracy" type: "Accuracy" bottom: "y" bottom: "label" top: "a" }
    """
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    tower = caffe_to_tower(path)
    assert tower.input_names == ["image"]
    assert tower.signature[0].shape.as_list() == [None, 5, 5, 3]
    assert [found.name for found in read_prototxt(path).layers] == ["in", "r", "accuracy"]


def test_shapes_of_inputs_can_be_given(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text('layer { name: "r" type: "ReLU" bottom: "data" top: "y" }')
    with pytest.raises(ValueError, match="declares no inputs: pass input_shapes="):
        caffe_to_tower(path)
    tower = caffe_to_tower(path, {"data": [1, 3, 8, 9]})
    assert tower.signature[0].shape.as_list() == [None, 8, 9, 3]


def test_layers_that_are_not_known_are_named(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(layer("Python") + 'layer { name: "m" type: "MVN" bottom: "y" top: "z" }')
    with pytest.raises(ValueError, match=r"received also MVN \(m\), Python \(l\)"):
        caffe_to_tower(path)


def test_weights_of_unknown_layers_are_named(tmp_path, caplog):
    files = caffe.write_net(tmp_path, layer("Bias"), {"l": [random(4)]})
    with caplog.at_level(logging.WARNING, "towerpack"):
        assert load_caffe(*files) == {}
    assert "l (Bias)" in caplog.text


def test_a_layer_that_fails_is_named(tmp_path):
    text = layer("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 }")
    with pytest.raises(ValueError, match="MAX or AVE") as caught:
        run(tmp_path, text)
    assert "in the Caffe layer 'l' (Pooling)" in caught.value.__notes__


def test_files_that_are_none(tmp_path):
    path = tmp_path / "x"
    path.write_text("layer {")
    with pytest.raises(ValueError, match="expected a network in"):
        read_prototxt(path)
    with pytest.raises(ValueError, match="expected a caffemodel in"):
        read_caffemodel(path)
    path.write_text(INPUT + 'layer { name: "a" } layers { name: "b" }')
    with pytest.raises(ValueError, match="V1 and V2 in one file"):
        read_prototxt(path)

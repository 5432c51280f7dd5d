"""Files in Caffe's wire format, written byte by byte with the field numbers of its caffe.proto.

Nothing here uses the messages that are under test.
"""

import struct

import numpy as np
import pytest

from towerpack.export import load_caffe
from towerpack.export.foreign.caffe import read_caffemodel

VARINT, BYTES, FIXED32 = 0, 2, 5


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def tag(number, kind):
    return varint(number << 3 | kind)


def integer(number, value):
    return tag(number, VARINT) + varint(value)


def nested(number, content):
    content = content.encode() if isinstance(content, str) else content
    return tag(number, BYTES) + varint(len(content)) + content


def floats(number, array):
    return nested(number, np.asarray(array, "<f4").tobytes())


def unpacked(number, array):
    return b"".join(tag(number, FIXED32) + struct.pack("<f", x) for x in array.ravel())


def doubles(number, array):
    return nested(number, np.asarray(array, "<f8").tobytes())


def shape(*dims):
    return nested(7, nested(1, b"".join(varint(dim) for dim in dims)))  # BlobShape.dim is packed


def legacy(*dims):
    return b"".join(integer(place + 1, dim) for place, dim in enumerate(dims))


RNG = np.random.default_rng(2)
W, B = RNG.normal(size=(3, 2, 3, 3)).astype("f4"), RNG.normal(size=3).astype("f4")
FC = RNG.normal(size=(5, 3 * 2 * 2)).astype("f4")

PROTOTXT = """
input: "data" input_dim: 1 input_dim: 2 input_dim: 4 input_dim: 4
{layer} {{ name: "conv" type: {conv} bottom: "data" top: "conv"
  convolution_param {{ num_output: 3 kernel_size: 3 }} }}
{layer} {{ name: "fc" type: {fc} bottom: "conv" top: "fc"
  inner_product_param {{ num_output: 5 bias_term: false }} }}
"""

BLOBS = {
    "shape and packed floats": (
        shape(*W.shape) + floats(5, W),
        shape(3) + floats(5, B),
        shape(*FC.shape) + floats(5, FC),
    ),
    "gradients beside them": (
        floats(5, W) + floats(6, W * 0) + shape(*W.shape),
        floats(6, B * 0) + floats(5, B) + shape(3),
        shape(*FC.shape) + floats(5, FC) + floats(6, FC * 0),
    ),
    "double precision": (
        shape(*W.shape) + doubles(8, W) + doubles(9, W * 0),
        shape(3) + doubles(8, B),
        shape(*FC.shape) + doubles(8, FC),
    ),
    "four old sizes": (
        legacy(*W.shape) + floats(5, W),
        legacy(1, 1, 1, 3) + floats(5, B),
        legacy(1, 1, *FC.shape) + floats(5, FC),
    ),
    "floats not packed": (
        legacy(*W.shape) + unpacked(5, W),
        legacy(1, 1, 1, 3) + unpacked(5, B),
        legacy(1, 1, *FC.shape) + unpacked(5, FC),
    ),
}


def new_file(conv, bias, fc):
    """`LayerParameter`s in field 100, with fields that inference does not need between them."""
    learning = nested(6, tag(3, FIXED32) + struct.pack("<f", 2.0))  # param { lr_mult: 2 }
    filler = nested(7, nested(1, "xavier"))
    parameters = integer(1, 3) + nested(4, varint(3)) + filler  # num_output, kernel_size
    first = nested(1, "conv") + nested(2, "Convolution") + nested(3, "data") + nested(4, "conv")
    first += learning + nested(7, conv) + nested(7, bias) + integer(10, 1) + nested(106, parameters)
    second = nested(1, "fc") + nested(2, "InnerProduct") + nested(3, "conv") + nested(4, "fc")
    second += nested(7, fc) + nested(117, integer(1, 5) + integer(2, 0))
    data = nested(1, "d") + nested(2, "Data") + nested(4, "data") + nested(100, integer(3, 227))
    return nested(1, "net") + b"".join(nested(100, layer) for layer in (data, first, second))


def old_file(conv, bias, fc):
    """`V1LayerParameter`s in field 2: bottom 2, top 3, name 4, type 5, blobs 6."""
    first = nested(2, "data") + nested(3, "conv") + nested(4, "conv") + integer(5, 4)
    first += nested(6, conv) + nested(6, bias) + unpacked(7, np.ones(2))  # blobs_lr
    first += nested(10, integer(1, 3) + integer(4, 3))
    second = nested(2, "conv") + nested(3, "fc") + nested(4, "fc") + integer(5, 14)
    second += nested(6, fc) + nested(17, integer(1, 5) + integer(2, 0)) + nested(1001, "shared")
    loss = (
        nested(4, "loss") + integer(5, 21) + nested(32, integer(1, 0))
    )  # include { phase: TRAIN }
    return nested(1, "net") + b"".join(nested(2, layer) for layer in (first, second, loss))


@pytest.mark.parametrize("blobs", BLOBS)
@pytest.mark.parametrize("version", [1, 2])
def test_a_file_as_caffe_writes_it(version, blobs, tmp_path):
    prototxt, caffemodel = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    if version == 1:
        prototxt.write_text(PROTOTXT.format(layer="layers", conv="CONVOLUTION", fc="INNER_PRODUCT"))
        caffemodel.write_bytes(old_file(*BLOBS[blobs]))
    else:
        prototxt.write_text(
            PROTOTXT.format(layer="layer", conv='"Convolution"', fc='"InnerProduct"')
        )
        caffemodel.write_bytes(new_file(*BLOBS[blobs]))
    weights = load_caffe(prototxt, caffemodel)
    np.testing.assert_array_equal(weights["conv/W"], W.transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(weights["conv/b"], B)
    by_place = FC.reshape(5, 3, 4).transpose(2, 1, 0).reshape(12, 5)
    np.testing.assert_array_equal(weights["fc/W"], by_place)
    types = [layer.type for layer in read_caffemodel(caffemodel).layers]
    assert types[-2:] == ["Convolution", "InnerProduct"]


# V1LayerType of caffe.proto.
V1_TYPES = {
    3: "Concat",
    4: "Convolution",
    6: "Dropout",
    8: "Flatten",
    14: "InnerProduct",
    15: "LRN",
    17: "Pooling",
    18: "ReLU",
    20: "Softmax",
    22: "Split",
    25: "Eltwise",
    26: "Power",
    33: "Slice",
    35: "AbsVal",
    39: "Deconvolution",
}


def test_the_numbers_of_old_types(tmp_path):
    path = tmp_path / "net.caffemodel"
    layers = [nested(4, f"l{number}") + integer(5, number) for number in V1_TYPES]
    path.write_bytes(b"".join(nested(2, layer) for layer in layers))
    assert [layer.type for layer in read_caffemodel(path).layers] == list(V1_TYPES.values())


def test_a_blob_of_another_size_than_it_says(tmp_path):
    path = tmp_path / "net.caffemodel"
    layer = nested(1, "conv") + nested(2, "Convolution") + nested(7, shape(2, 2) + floats(5, B))
    path.write_bytes(nested(100, layer))
    with pytest.raises(ValueError, match=r"a blob of shape \[2, 2\], received 3 numbers"):
        read_caffemodel(path)


def test_a_network_without_inputs_and_its_shapes(tmp_path):
    prototxt, caffemodel = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    prototxt.write_text(
        'layer { name: "d" type: "Data" top: "data" } layer { name: "fc" type: "InnerProduct" '
        'bottom: "data" top: "fc" inner_product_param { num_output: 5 bias_term: false } }'
    )
    caffemodel.write_bytes(new_file(*BLOBS["shape and packed floats"]))
    with pytest.raises(ValueError, match="pass input_shapes="):
        load_caffe(prototxt, caffemodel)
    weights = load_caffe(prototxt, caffemodel, {"data": [1, 3, 2, 2]})
    assert weights["fc/W"][1].tolist() == FC[:, 4].tolist()  # the second channel of the first place

"""Layer by layer against Caffe's definitions, through both files and the tower."""

import math

import numpy as np
import pytest

from tests.export.foreign import caffe_files as caffe
from towerpack.export import caffe_to_tower, load_caffe
from towerpack.predict import OfflinePredictor, PredictConfig

RNG = np.random.default_rng(3)
INPUT = 'input: "data" input_shape { dim: 1 dim: 4 dim: 7 dim: 6 }\n'


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


X = random(2, 4, 7, 6)
ON_X = 'bottom: "data" top: "y"'


def run(directory, text, blobs=None, output="l/output", x=X):
    """The tower's output for an NCHW input, as NCHW."""
    prototxt, caffemodel = caffe.write_net(directory, text, blobs or {})
    config = PredictConfig(
        tower_func=caffe_to_tower(prototxt),
        output_names=[output],
        session_init=load_caffe(prototxt, caffemodel) or None,
    )
    (y,) = OfflinePredictor(config)(x.transpose(0, 2, 3, 1))
    return y.transpose(0, 3, 1, 2) if y.ndim == 4 else y


def layer(kind, parameters="", edges=ON_X):
    return f'{INPUT}layer {{ name: "l" type: "{kind}" {edges} {parameters} }}'


def check(received, expected):
    assert received.shape == expected.shape
    np.testing.assert_allclose(received, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("text", "options", "shape"),
    [
        ("kernel_size: 3", {}, (6, 4, 3, 3)),
        ("kernel_size: 3 pad: 1 stride: 2", {"pad": 1, "stride": 2}, (6, 4, 3, 3)),
        ("kernel_size: 3 pad: 1 group: 2", {"pad": 1, "group": 2}, (6, 2, 3, 3)),
        ("kernel_size: 2 dilation: 2", {"dilation": 2}, (6, 4, 2, 2)),
        ("kernel_h: 3 kernel_w: 2", {}, (6, 4, 3, 2)),
    ],
)
def test_convolution(text, options, shape, tmp_path):
    w, b = random(*shape), random(6)
    text = layer("Convolution", f"convolution_param {{ num_output: 6 {text} }}")
    check(run(tmp_path, text, {"l": [w, b]}), caffe.convolve(X, w, b, **options))


def test_convolution_without_bias(tmp_path):
    w = random(2, 4, 1, 1)
    text = layer(
        "Convolution", "convolution_param { num_output: 2 kernel_size: 1 bias_term: false }"
    )
    check(run(tmp_path, text, {"l": [w]}), caffe.convolve(X, w))


@pytest.mark.parametrize(("group", "pad", "stride"), [(1, 0, 2), (1, 1, 2), (4, 1, 2), (2, 0, 1)])
def test_deconvolution(group, pad, stride, tmp_path):
    w, b = random(4, 8 // group, 4, 4), random(8)
    text = layer(
        "Deconvolution",
        f"convolution_param {{ num_output: 8 kernel_size: 4 stride: {stride} pad: {pad} "
        f"group: {group} }}",
    )
    received = run(tmp_path, text, {"l": [w, b]})
    check(received, caffe.deconvolve(X, w, b, stride, pad, group))


def test_deconvolution_with_two_sizes_and_no_bias(tmp_path):
    w = random(4, 3, 3, 2)
    text = layer(
        "Deconvolution",
        "convolution_param { num_output: 3 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 "
        "pad_h: 1 pad_w: 0 bias_term: false }",
    )
    received = run(tmp_path, text, {"l": [w]})
    check(received, caffe.deconvolve(X, w, stride=(2, 1), pad=(1, 0)))


@pytest.mark.parametrize("kind", ["MAX", "AVE"])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 0), (3, 2, 1), (2, 3, 1), (3, 1, 1), (5, 3, 2)]
)
def test_pooling_rounds_as_caffe_does(kind, kernel, stride, pad, tmp_path):
    text = layer(
        "Pooling",
        f"pooling_param {{ pool: {kind} kernel_size: {kernel} stride: {stride} pad: {pad} }}",
    )
    check(run(tmp_path, text), caffe.pool(X, kind, kernel, stride, pad))


@pytest.mark.parametrize("kind", ["MAX", "AVE"])
@pytest.mark.parametrize(
    ("text", "kernel", "stride", "pad"),
    [
        ("kernel_h: 3 kernel_w: 4 stride_h: 2 stride_w: 3", (3, 4), (2, 3), 0),
        # Padded above and below only, the last window of a row is clipped all the same.
        ("kernel_h: 3 kernel_w: 1 stride: 3 pad_h: 1 pad_w: 0", (3, 1), 3, (1, 0)),
        ("kernel_h: 3 kernel_w: 2 stride: 4 pad_h: 2 pad_w: 1", (3, 2), 4, (2, 1)),
    ],
)
def test_pooling_with_two_sizes(kind, text, kernel, stride, pad, tmp_path):
    text = layer("Pooling", f"pooling_param {{ pool: {kind} {text} }}")
    check(run(tmp_path, text), caffe.pool(X, kind, kernel, stride, pad))


@pytest.mark.parametrize("kind", ["MAX", "AVE"])
def test_pooling_rounded_down_where_the_file_says_so(kind, tmp_path):
    text = layer(
        "Pooling", f"pooling_param {{ pool: {kind} kernel_size: 2 stride: 2 round_mode: FLOOR }}"
    )
    received = run(tmp_path, text)
    assert received.shape == (2, 4, 3, 3)
    check(received, caffe.pool(X, kind, 2, 2, rounded=math.floor))


def test_global_pooling(tmp_path):
    text = layer("Pooling", "pooling_param { pool: AVE global_pooling: true }")
    check(run(tmp_path, text), X.mean(axis=(2, 3), keepdims=True))


def test_lrn_across_and_within_channels(tmp_path):
    check(run(tmp_path, layer("LRN")), caffe.lrn_across(X))
    text = layer("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 }")
    check(run(tmp_path, text), caffe.lrn_across(X, 3, 0.5, 0.6, 2))
    text = layer(
        "LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 norm_region: WITHIN_CHANNEL }"
    )
    expected = X * (1 + 0.5 * caffe.pool(X**2, "AVE", 3, 1, 1)) ** -0.6
    check(run(tmp_path, text), expected)


ELEMENTWISE = {
    "ReLU": ("", lambda x: np.maximum(x, 0)),
    "ReLU leaky": ("relu_param { negative_slope: 0.1 }", lambda x: np.where(x > 0, x, 0.1 * x)),
    "Sigmoid": ("", lambda x: 1 / (1 + np.exp(-x))),
    "TanH": ("", np.tanh),
    "AbsVal": ("", np.abs),
    "ELU": ("elu_param { alpha: 0.5 }", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    "Power": ("power_param { power: 2 scale: 3 shift: 1 }", lambda x: (1 + 3 * x) ** 2),
    "Dropout": ("dropout_param { dropout_ratio: 0.9 }", lambda x: x),
    "Softmax": ("", caffe.softmax),
    "Softmax rows": ("softmax_param { axis: 2 }", lambda x: caffe.softmax(x, 2)),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_functions_of_one_blob(name, tmp_path):
    parameters, expected = ELEMENTWISE[name]
    check(run(tmp_path, layer(name.split()[0], parameters)), expected(X))


def test_prelu(tmp_path):
    slopes = random(4)
    expected = np.where(X > 0, X, slopes[:, None, None] * X)
    check(run(tmp_path, layer("PReLU"), {"l": [slopes]}), expected)
    shared = layer("PReLU", "prelu_param { channel_shared: true }")
    check(run(tmp_path, shared, {"l": [slopes[:1]]}), np.where(X > 0, X, slopes[0] * X))


def test_batch_norm_with_its_scale(tmp_path):
    mean, variance, factor = random(4), np.abs(random(4)) + 0.5, np.array([4.0], np.float32)
    gamma, beta = random(4), random(4)
    text = (
        f'{INPUT} layer {{ name: "bn" type: "BatchNorm" {ON_X} batch_norm_param {{ eps: 0.01 }} }}'
        'layer { name: "l" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true } }'
    )
    blobs = {"bn": [mean, variance, factor], "l": [gamma, beta]}

    def on_channels(v):
        return v[None, :, None, None]

    normal = (X - on_channels(mean / 4)) / np.sqrt(on_channels(variance / 4) + 0.01)
    check(run(tmp_path, text, blobs), normal * on_channels(gamma) + on_channels(beta))
    weights = load_caffe(tmp_path / "net.prototxt", tmp_path / "net.caffemodel")
    assert sorted(weights) == ["bn/beta", "bn/gamma", "bn/mean/EMA", "bn/variance/EMA"]


def test_batch_norm_that_has_seen_nothing(tmp_path):
    blobs = [random(4), random(4), np.zeros(1, np.float32)]
    check(run(tmp_path, layer("BatchNorm"), {"l": blobs}) / 300, X / np.sqrt(1e-5) / 300)


def test_a_scale_by_itself(tmp_path):
    gamma = random(4)
    check(run(tmp_path, layer("Scale"), {"l": [gamma]}), X * gamma[:, None, None])


def test_inner_product_of_an_image_and_behind_it(tmp_path):
    w, b, w2 = random(5, 4 * 7 * 6), random(5), random(3, 5)
    text = (
        f'{INPUT} layer {{ name: "one" type: "InnerProduct" {ON_X} '
        "inner_product_param { num_output: 5 } }"
        'layer { name: "l" type: "InnerProduct" bottom: "y" top: "z" '
        "inner_product_param { num_output: 3 bias_term: false } }"
    )
    expected = (X.reshape(2, -1) @ w.T + b) @ w2.T
    check(run(tmp_path, text, {"one": [w, b], "l": [w2]}) / 30, expected / 30)


def test_inner_product_behind_flatten_reshape_concat_and_slice(tmp_path):
    w = random(2, 4 * 7 * 6)
    for between in (
        'layer { name: "f" type: "Flatten" bottom: "data" top: "f" }',
        'layer { name: "f" type: "Reshape" bottom: "data" top: "f" '
        "reshape_param { shape { dim: 0 dim: -1 } } }",
        'layer { name: "s" type: "Slice" bottom: "data" top: "a" top: "b" '
        "slice_param { slice_point: 1 } }"
        'layer { name: "f" type: "Concat" bottom: "b" bottom: "a" top: "f" }',
        'layer { name: "r" type: "Reshape" bottom: "data" top: "r" '
        "reshape_param { shape { dim: 0 dim: 0 dim: 6 dim: 7 } } }"
        'layer { name: "f" type: "ReLU" bottom: "r" top: "f" relu_param { negative_slope: 1 } }',
    ):
        text = (
            f'{INPUT} {between} layer {{ name: "l" type: "InnerProduct" bottom: "f" top: "y" '
            "inner_product_param { num_output: 2 bias_term: false } }"
        )
        given = np.concatenate([X[:, 1:], X[:, :1]], axis=1) if "Slice" in between else X
        received = run(tmp_path, text, {"l": [w]})
        check(received / 30, given.reshape(2, -1) @ w.T / 30)


def test_inner_product_of_a_part_of_a_vector(tmp_path):
    w = random(2, 4 * 7 * 6 - 5)
    text = (
        f'{INPUT} layer {{ name: "f" type: "Flatten" bottom: "data" top: "f" }}'
        'layer { name: "s" type: "Slice" bottom: "f" top: "a" top: "b" '
        "slice_param { slice_point: 5 } }"
        'layer { name: "l" type: "InnerProduct" bottom: "b" top: "y" '
        "inner_product_param { num_output: 2 bias_term: false } }"
    )
    expected = X.reshape(2, -1)[:, 5:] @ w.T
    check(run(tmp_path, text, {"l": [w]}) / 30, expected / 30)


def test_inner_product_with_transposed_weights(tmp_path):
    w = random(4 * 7 * 6, 2)
    text = layer(
        "InnerProduct", "inner_product_param { num_output: 2 bias_term: false transpose: true }"
    )
    check(run(tmp_path, text, {"l": [w]}) / 30, X.reshape(2, -1) @ w / 30)


@pytest.mark.parametrize(
    "parameters",
    ["shape { dim: 0 dim: -1 dim: 7 dim: 3 }", "shape { dim: 6 dim: 7 } axis: 2"],
)
def test_inner_product_of_a_shape_that_is_not_known(parameters, tmp_path):
    text = (
        f'{INPUT} layer {{ name: "f" type: "Reshape" bottom: "data" top: "f" '
        f"reshape_param {{ {parameters} }} }}"
        'layer { name: "l" type: "InnerProduct" bottom: "f" top: "y" '
        "inner_product_param { num_output: 2 } }"
    )
    files = caffe.write_net(tmp_path, text, {"l": [random(2, 168), random(2)]})
    with pytest.raises(
        ValueError, match="'l' depends on the shape of its input 'f', which is unknown"
    ):
        load_caffe(*files)


def test_flatten_and_reshape_keep_caffes_order(tmp_path):
    check(run(tmp_path, layer("Flatten")), X.reshape(2, -1))
    part = layer("Flatten", "flatten_param { axis: 2 }")
    check(run(tmp_path, part), X.reshape(2, 4, -1))
    text = layer("Reshape", "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 3 } }")
    check(run(tmp_path, text), X.reshape(2, 2, -1, 3))
    text = layer("Reshape", "reshape_param { shape { dim: 2 dim: 2 } axis: 1 num_axes: 1 }")
    check(run(tmp_path, text), X.reshape(2, 2, 2, 7, 6))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("", lambda a, b: a + b),
        ("operation: SUM coeff: 1 coeff: -2", lambda a, b: a - 2 * b),
        ("operation: PROD", lambda a, b: a * b),
        ("operation: MAX", np.maximum),
    ],
)
def test_eltwise(parameters, expected, tmp_path):
    text = (
        f'{INPUT} layer {{ name: "r" type: "ReLU" bottom: "data" top: "r" }}'
        'layer { name: "l" type: "Eltwise" bottom: "data" bottom: "r" top: "y" '
        f"eltwise_param {{ {parameters} }} }}"
    )
    check(run(tmp_path, text), expected(X, np.maximum(X, 0)))


def test_concat_and_slice_along_any_axis(tmp_path):
    for parameters, axis in (("", 1), ("axis: 2", 2), ("axis: -1", 3), ("concat_dim: 1", 1)):
        edges = 'bottom: "data" bottom: "data" top: "y"'
        text = layer("Concat", f"concat_param {{ {parameters} }}", edges)
        check(run(tmp_path, text), np.concatenate([X, X], axis=axis))
    text = layer(
        "Slice", "slice_param { axis: 2 slice_point: 3 }", 'bottom: "data" top: "a" top: "b"'
    )
    check(run(tmp_path, text), X[:, :, :3])
    check(run(tmp_path, text, output="l/output_1"), X[:, :, 3:])
    even = layer("Slice", "", 'bottom: "data" top: "a" top: "b"')
    check(run(tmp_path, even, output="l/output_1"), X[:, 2:])


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("", X[:, :, :5, :4]),
        ("offset: 2", X[:, :, 2:7, 2:6]),
        ("offset: 1 offset: 2", X[:, :, 1:6, 2:6]),
        ("axis: 3 offset: 1", X[:, :, :, 1:5]),
        ("axis: -2 offset: 1 offset: 0", X[:, :, 1:6, :4]),
        ("axis: 1 offset: 1 offset: 0 offset: 2", X[:, 1:4, :5, 2:6]),
        ("axis: 0 offset: 0 offset: 1 offset: 0 offset: 2", X[:, 1:4, :5, 2:6]),
    ],
)
def test_crop(parameters, expected, tmp_path):
    size = (
        f'{INPUT} layer {{ name: "c" type: "Convolution" bottom: "data" top: "c" '
        "convolution_param { num_output: 3 kernel_size: 3 } }"
    )
    text = (
        f'{size} layer {{ name: "l" type: "Crop" bottom: "data" bottom: "c" top: "y" '
        f"crop_param {{ {parameters} }} }}"
    )
    check(run(tmp_path, text, {"c": [random(3, 4, 3, 3), random(3)]}), expected)


@pytest.mark.parametrize(
    ("parameters", "axis", "points"),
    [
        ("slice_point: 1 slice_point: 3", 1, [1, 3]),
        ("slice_dim: 1 slice_point: 1 slice_point: 2", 1, [1, 2]),
        ("axis: 2 slice_point: 2 slice_point: 3", 2, [2, 3]),
        ("axis: -1", 3, [2, 4]),
    ],
)
def test_slice_points(parameters, axis, points, tmp_path):
    edges = 'bottom: "data" top: "a" top: "b" top: "c"'
    text = layer("Slice", f"slice_param {{ {parameters} }}", edges)
    for place, expected in enumerate(np.split(X, points, axis)):
        name = "l/output" + (f"_{place}" if place else "")
        check(run(tmp_path, text, output=name), expected)


def test_split(tmp_path):
    text = layer("Split", "", 'bottom: "data" top: "a" top: "b"')
    check(run(tmp_path, text, output="l/output_1"), X)

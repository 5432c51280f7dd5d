"""Exports of towers with loops and branches: equal to the tower, or refused with the reason."""

import numpy as np
import pytest

from towerpack._tensorflow import tf, v1
from towerpack.export import ExportError, ModelExporter, open_export
from towerpack.predict import OfflinePredictor, PredictConfig


def keras_lstm(x):
    return tf.keras.layers.LSTM(4, name="lstm")(x)


def keras_bidirectional(x):
    layer = tf.keras.layers.GRU(4, return_sequences=True)
    return tf.keras.layers.Bidirectional(layer, name="gru")(x)


def cond_in_while(x):
    w = v1.get_variable("w", [3, 3])

    def body(i, h):
        branch = tf.cond(tf.reduce_sum(h) > 0, lambda: tf.tanh(h @ w), lambda: h * 2.0)
        return i + 1, branch

    return tf.while_loop(lambda i, h: i < 3, body, [0, x[:, 0]])[1]


def while_over_the_input(x):
    def body(i, total):
        pair = lambda: total + x[:, i], lambda: total - x[:, i]
        return i + 1, tf.cond(x[0, i, 0] > 0.5, *pair)

    return tf.while_loop(lambda i, t: i < tf.shape(x)[1], body, [0, tf.zeros_like(x[:, 0])])[1]


def nested_loops(x):
    def outer(i, h):
        return i + 1, tf.while_loop(lambda j, h: j < i, lambda j, h: (j + 1, h + x[:, 0]), [0, h])[
            1
        ]

    return tf.while_loop(lambda i, h: i < 3, outer, [0, x[:, 1]])[1]


def loop_over_constants(x):
    start = [0, tf.constant([1.0, 2.0, 3.0])]
    return x + tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 2.0), start)[1]


def branch_of_the_input(x):
    w = v1.get_variable("w", [3, 3])
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x @ w, lambda: x * 2.0)


def mapped(x):
    return tf.map_fn(lambda row: tf.reduce_sum(row * row), x)


def scanned(x):
    return tf.scan(lambda a, b: a * 0.5 + b, tf.transpose(x, [1, 0, 2]))


def branch_of_a_number(x):
    flag = v1.get_variable("flag", [])  # TensorFlow runs this, but cannot freeze it
    return x + tf.cond(flag, lambda: tf.ones([3]), lambda: tf.zeros([3]))


def exporter(func):
    def tower(x):
        tf.identity(func(x), name="out")

    signature = [tf.TensorSpec([None, 5, 3], tf.float32, "x")]
    config = PredictConfig(tower_func=tower, input_signature=signature, output_names=["out"])
    config = PredictConfig(
        tower_func=tower,
        input_signature=signature,
        output_names=["out"],
        session_init={name: v.numpy() for name, v in OfflinePredictor(config).store.saved().items()}
        or None,
    )
    return ModelExporter(config), config


@pytest.mark.parametrize("method, name", [("export_compact", "m.pb"), ("export_onnx", "m.onnx")])
@pytest.mark.parametrize(
    "func",
    [
        keras_lstm,
        keras_bidirectional,
        cond_in_while,
        while_over_the_input,
        nested_loops,
        loop_over_constants,
        branch_of_the_input,
        mapped,
    ],
)
def test_an_export_with_loops_gives_the_towers_numbers(func, method, name, tmp_path):
    exports, config = exporter(func)
    getattr(exports, method)(tmp_path / name)
    for rows in (1, 7):
        x = np.random.default_rng(rows).normal(size=(rows, 5, 3)).astype(np.float32)
        (expected,) = OfflinePredictor(config)(x)
        received = open_export(tmp_path / name)({"x": x})["out"]
        np.testing.assert_allclose(received, expected, atol=1e-5)


@pytest.mark.parametrize(
    "func, method, message",
    [
        (scanned, "export_onnx", "TensorListSetItem"),
        (branch_of_a_number, "export_compact", "TensorFlow cannot freeze this graph"),
        (branch_of_a_number, "export_onnx", "TensorFlow cannot freeze this graph"),
    ],
)
def test_what_a_converter_cannot_do_is_refused_and_leaves_no_file(func, method, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        getattr(exporter(func)[0], method)(tmp_path / "model")
    assert not list(tmp_path.iterdir())

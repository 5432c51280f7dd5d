import numpy as np

from tests.models.building import build
from towerpack._tensorflow import tf, v1
from towerpack.models import (
    BatchNorm,
    BNReLU,
    Conv2D,
    FullyConnected,
    MaxPooling,
    SqueezeExcite,
    disable_layer_logging,
    layer_table,
    log_layer_table,
)
from towerpack.tower.varreplace import freeze_variables

IMAGE = np.zeros([2, 8, 8, 3], np.float32)


def tower(x):
    x = Conv2D("conv0", x, 16, 3, activation=BNReLU)
    x = MaxPooling("pool0", x, 2)
    with v1.variable_scope("block"):
        x = SqueezeExcite("se", x, 4)
    x = BatchNorm("bn", x)
    return FullyConnected("fc", x, 10)


TABLE = """\
layer     kind            input             output            parameters
conv0     Conv2D          [None, 8, 8, 3]   [None, 8, 8, 16]         480
pool0     MaxPooling      [None, 8, 8, 16]  [None, 4, 4, 16]           0
block/se  SqueezeExcite   [None, 4, 4, 16]  [None, 4, 4, 16]         148
fc        FullyConnected  [None, 4, 4, 16]  [None, 10]             2,570
total                                                              3,198"""


def test_one_row_for_each_named_layer_and_each_only_once():
    _, store = build(tower, IMAGE)
    build(tower, IMAGE, store=store)
    assert layer_table(store) == TABLE


def test_inference_alone_has_no_table():
    _, store = build(tower, IMAGE, is_training=False)
    assert layer_table(store) == ""


def test_logged_as_one_message_unless_disabled(capsys, monkeypatch):
    monkeypatch.setattr("towerpack.models.table._logging", True)
    _, store = build(tower, IMAGE)
    log_layer_table(store)
    assert TABLE in capsys.readouterr().err
    disable_layer_logging()
    log_layer_table(store)
    assert not capsys.readouterr().err


def test_keras_layers_have_rows_and_what_is_frozen_is_shown_with_the_reason():
    layers = tf.keras.layers
    x = tf.keras.Input([3])
    base = tf.keras.Model(
        x, layers.Dense(4, name="b")(layers.BatchNormalization(name="bn")(x)), name="base"
    )
    base.layers[1].trainable = False
    whole = layers.Dense(4, name="whole", trainable=False)

    def keras_tower(x):
        x = FullyConnected("fc0", x, 3)
        x = layers.Dropout(0.5)(whole(base(x)))
        with v1.variable_scope("head"):
            x = layers.Dense(2)(x)
            with freeze_variables(skip_collection=True):
                return FullyConnected("fc1", x, 2)

    _, store = build(keras_tower, np.zeros([2, 3], np.float32))
    build(keras_tower, np.zeros([2, 3], np.float32), store=store)
    assert layer_table(store) == KERAS_TABLE


KERAS_TABLE = """\
layer       kind            input      output     parameters  frozen
fc0         FullyConnected  [None, 3]  [None, 3]          12
base        Functional      [None, 3]  [None, 4]          22  6: bn.trainable=False
whole       Dense           [None, 4]  [None, 4]          20  all: whole.trainable=False
dropout     Dropout         [None, 4]  [None, 4]           0
head/dense  Dense           [None, 4]  [None, 2]          10
head/fc1    FullyConnected  [None, 2]  [None, 2]           6  all: freeze_variables
total                                                     70  32"""

import numpy as np

from tests.models.building import build
from towerpack._tensorflow import v1
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

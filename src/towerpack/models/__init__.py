"""Symbolic layers and what holds them together: `ModelDesc`, `argscope`, `LinearWrap`.

Layers are thin functions over TensorFlow's ops: `Conv2D('conv0', x, 32, 3)` makes the variables
`conv0/W` and `conv0/b` and returns a tensor named `conv0/output`. Any other TensorFlow library
works beside them.
"""

from towerpack.models.argscope import argscope, get_arg_scope
from towerpack.models.conv2d import Conv2D
from towerpack.models.dropout import Dropout
from towerpack.models.fc import FullyConnected
from towerpack.models.linearwrap import LinearWrap
from towerpack.models.model_desc import ModelDesc, ModelDescBase
from towerpack.models.pool import AvgPooling, GlobalAvgPooling, MaxPooling
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import batch_flatten

__all__ = [
    "AvgPooling",
    "Conv2D",
    "Dropout",
    "FullyConnected",
    "GlobalAvgPooling",
    "LinearWrap",
    "MaxPooling",
    "ModelDesc",
    "ModelDescBase",
    "VariableHolder",
    "argscope",
    "batch_flatten",
    "get_arg_scope",
    "layer_register",
]

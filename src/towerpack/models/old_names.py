"""The names that old scripts use: of the arguments of layers, and of a layer.

No other file of the layers knows them. Signatures, argscopes and error messages use the new names.
"""

from __future__ import annotations

from typing import Any

from towerpack.models.convolutions import (
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    DepthwiseConv2D,
    SeparableConv2D,
)
from towerpack.models.dense import FullyConnected
from towerpack.models.dropout import Dropout
from towerpack.models.nonlin import LeakyReLU
from towerpack.models.norms import (
    BatchNorm,
    BatchRenorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
)
from towerpack.models.pooling import AvgPooling, MaxPooling
from towerpack.models.registry import register_alias

_WEIGHTS = {"nl": "activation", "W_init": "kernel_initializer", "b_init": "bias_initializer"}
_DEPTHWISE = {**_WEIGHTS, "kernel_shape": "kernel_size", "stride": "strides"}
_CONV = {**_DEPTHWISE, "out_channel": "filters"}
_POOL = {"shape": "pool_size", "stride": "strides"}
_SCALE = {"use_scale": "scale", "gamma_init": "gamma_initializer"}
_NORM = {**_SCALE, "use_bias": "center"}
_BATCH_NORM = {**_NORM, "use_local_stat": "training", "decay": "momentum"}

ARGUMENTS: list[tuple[Any, dict[str, str]]] = [
    (Conv1D, _CONV),
    (Conv2D, _CONV),
    (Conv3D, _CONV),
    (Conv2DTranspose, _CONV),
    (SeparableConv2D, _CONV),
    (DepthwiseConv2D, _DEPTHWISE),
    (FullyConnected, {**_WEIGHTS, "out_dim": "units"}),
    (MaxPooling, _POOL),
    (AvgPooling, _POOL),
    (BatchNorm, _BATCH_NORM),
    (BatchRenorm, _BATCH_NORM),
    (LayerNorm, _NORM),
    (InstanceNorm, _NORM),
    (GroupNorm, {**_NORM, "group": "groups"}),
    (RMSNorm, _SCALE),
    (Dropout, {"is_training": "training"}),
    (LeakyReLU, {"leak": "alpha"}),
]

for _layer, _renamed in ARGUMENTS:
    _layer.argscope_signature.rename(_renamed)

Deconv2D = register_alias("Deconv2D", Conv2DTranspose)

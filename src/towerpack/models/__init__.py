"""Symbolic layers and what holds them together: `ModelDesc`, `argscope`, `LinearWrap`.

Layers are thin functions over TensorFlow's ops: `Conv2D('conv0', x, 32, 3)` makes the variables
`conv0/W` and `conv0/b` and returns a tensor named `conv0/output`. Any other TensorFlow library
works beside them.
"""

from towerpack.models.argscope import ArgScope, argscope, get_arg_scope
from towerpack.models.attention import MultiHeadAttention
from towerpack.models.batch_norm import BatchNorm
from towerpack.models.batch_renorm import BatchRenorm
from towerpack.models.concat_with import ConcatWith
from towerpack.models.conv1d import Conv1D
from towerpack.models.conv2d import Conv2D
from towerpack.models.conv2d_transpose import Conv2DTranspose, Deconv2D
from towerpack.models.conv3d import Conv3D
from towerpack.models.depthwise_conv2d import DepthwiseConv2D, SeparableConv2D
from towerpack.models.dropout import Dropout, StochasticDepth
from towerpack.models.embedding import Embedding
from towerpack.models.enable_argscope import (
    enable_argscope_for_function,
    enable_argscope_for_module,
)
from towerpack.models.fc import FullyConnected
from towerpack.models.layer_norm import GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from towerpack.models.linearwrap import LinearWrap
from towerpack.models.model_desc import ModelDesc, ModelDescBase
from towerpack.models.nonlin import (
    ELU,
    GELU,
    SELU,
    BNReLU,
    LeakyReLU,
    Maxout,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from towerpack.models.pool import AvgPooling, GlobalAvgPooling, GlobalMaxPooling, MaxPooling
from towerpack.models.recurrent import GRU, LSTM
from towerpack.models.registry import VariableHolder, get_registered_layer, layer_register
from towerpack.models.regularize import (
    l1_regularizer,
    l2_regularizer,
    regularize_cost,
    regularize_cost_from_collection,
)
from towerpack.models.shapes import batch_flatten
from towerpack.models.spectral_norm import SpectralNorm
from towerpack.models.squeeze_excite import SqueezeExcite
from towerpack.models.table import disable_layer_logging, layer_table, log_layer_table
from towerpack.models.transformer import TransformerBlock
from towerpack.models.upsampling import FixedUnPooling, PixelShuffle, UpSampling

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "SELU",
    "ArgScope",
    "AvgPooling",
    "BNReLU",
    "BatchNorm",
    "BatchRenorm",
    "ConcatWith",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Deconv2D",
    "DepthwiseConv2D",
    "Dropout",
    "Embedding",
    "FixedUnPooling",
    "FullyConnected",
    "GlobalAvgPooling",
    "GlobalMaxPooling",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "LeakyReLU",
    "LinearWrap",
    "MaxPooling",
    "Maxout",
    "ModelDesc",
    "ModelDescBase",
    "MultiHeadAttention",
    "PReLU",
    "PixelShuffle",
    "RMSNorm",
    "ReLU",
    "SeparableConv2D",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "SpectralNorm",
    "SqueezeExcite",
    "StochasticDepth",
    "Tanh",
    "TransformerBlock",
    "UpSampling",
    "VariableHolder",
    "argscope",
    "batch_flatten",
    "disable_layer_logging",
    "enable_argscope_for_function",
    "enable_argscope_for_module",
    "get_arg_scope",
    "get_registered_layer",
    "l1_regularizer",
    "l2_regularizer",
    "layer_register",
    "layer_table",
    "log_layer_table",
    "regularize_cost",
    "regularize_cost_from_collection",
]

"""Layers, and what combines them: `ModelDesc`, `argscope` and `LinearWrap`.

Layers are thin functions over TensorFlow's operations: `Conv2D('conv0', x, 32, 3)` creates the
variables `conv0/W` and `conv0/b` and returns a tensor named `conv0/output`. Any other TensorFlow
library works beside them.
"""

from towerpack.models.argscope import (
    ArgScope,
    argscope,
    enable_argscope_for_function,
    enable_argscope_for_module,
    get_arg_scope,
)
from towerpack.models.attention import MultiHeadAttention, SqueezeExcite, TransformerBlock
from towerpack.models.convolutions import (
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    DepthwiseConv2D,
    SeparableConv2D,
)
from towerpack.models.dense import Embedding, FullyConnected
from towerpack.models.elementwise import (
    ELU,
    GELU,
    SELU,
    BNReLU,
    Dropout,
    LeakyReLU,
    Maxout,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    StochasticDepth,
    Tanh,
)
from towerpack.models.linearwrap import ConcatWith, LinearWrap
from towerpack.models.model_desc import ModelDesc, ModelDescBase
from towerpack.models.norms import (
    BatchNorm,
    BatchRenorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
    SpectralNorm,
)
from towerpack.models.pooling import (
    AvgPooling,
    FixedUnPooling,
    GlobalAvgPooling,
    GlobalMaxPooling,
    MaxPooling,
    PixelShuffle,
    UpSampling,
)
from towerpack.models.recurrent import GRU, LSTM
from towerpack.models.registry import get_registered_layer, layer_register
from towerpack.models.regularize import (
    l1_regularizer,
    l2_regularizer,
    regularize_cost,
    regularize_cost_from_collection,
)
from towerpack.models.shapes import batch_flatten
from towerpack.models.summary import ModelTable, disable_layer_logging, model_summary
from towerpack.models.variables import VariableHolder

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
    "ModelTable",
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
    "model_summary",
    "regularize_cost",
    "regularize_cost_from_collection",
]

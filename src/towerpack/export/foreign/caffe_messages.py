"""Caffe's messages, as far as inference needs them.

Each field reads `name:number:type`, followed by `*` if it is repeated and by `=value` for a default
other than zero. Fields that are not declared here are skipped when a file is read.
"""

from __future__ import annotations

import functools
from typing import Any

from towerpack.dataflow.format.proto import Field, declare

# V1LayerType is how files from before 2014 name the types of layers.
ENUMS = {
    "Phase": "TRAIN TEST",
    "PoolMethod": "MAX AVE STOCHASTIC",
    "RoundMode": "CEIL FLOOR",
    "NormRegion": "ACROSS_CHANNELS WITHIN_CHANNEL",
    "EltwiseOp": "PROD SUM MAX",
    "V1LayerType": (
        "NONE ACCURACY BNLL CONCAT CONVOLUTION DATA DROPOUT EUCLIDEAN_LOSS FLATTEN HDF5_DATA "
        "HDF5_OUTPUT IM2COL IMAGE_DATA INFOGAIN_LOSS INNER_PRODUCT LRN MULTINOMIAL_LOGISTIC_LOSS "
        "POOLING RELU SIGMOID SOFTMAX SOFTMAX_LOSS SPLIT TANH WINDOW_DATA ELTWISE POWER "
        "SIGMOID_CROSS_ENTROPY_LOSS HINGE_LOSS MEMORY_DATA ARGMAX THRESHOLD DUMMY_DATA SLICE MVN "
        "ABSVAL SILENCE CONTRASTIVE_LOSS EXP DECONVOLUTION"
    ),
}

MESSAGES = {
    "BlobShape": "dim:1:int64*",
    "BlobProto": """
        num:1:int32 channels:2:int32 height:3:int32 width:4:int32 data:5:float*
        shape:7:BlobShape double_data:8:double*
    """,
    "NetStateRule": "phase:1:Phase",
    "ConvolutionParameter": """
        num_output:1:uint32 bias_term:2:bool=true pad:3:uint32* kernel_size:4:uint32*
        group:5:uint32=1 stride:6:uint32* pad_h:9:uint32 pad_w:10:uint32 kernel_h:11:uint32
        kernel_w:12:uint32 stride_h:13:uint32 stride_w:14:uint32 axis:16:int32=1 dilation:18:uint32*
    """,
    "PoolingParameter": """
        pool:1:PoolMethod kernel_size:2:uint32 stride:3:uint32=1 pad:4:uint32 kernel_h:5:uint32
        kernel_w:6:uint32 stride_h:7:uint32 stride_w:8:uint32 pad_h:9:uint32 pad_w:10:uint32
        global_pooling:12:bool round_mode:13:RoundMode
    """,
    "InnerProductParameter": """
        num_output:1:uint32 bias_term:2:bool=true axis:5:int32=1 transpose:6:bool
    """,
    "LRNParameter": """
        local_size:1:uint32=5 alpha:2:float=1 beta:3:float=0.75 norm_region:4:NormRegion k:5:float=1
    """,
    "ReLUParameter": "negative_slope:1:float",
    "PReLUParameter": "channel_shared:2:bool",
    "BatchNormParameter": "eps:3:float=1e-5",
    "ScaleParameter": "axis:1:int32=1 num_axes:2:int32=1 bias_term:4:bool",
    "EltwiseParameter": "operation:1:EltwiseOp=SUM coeff:2:float*",
    "ConcatParameter": "concat_dim:1:uint32=1 axis:2:int32=1",
    "DropoutParameter": "dropout_ratio:1:float=0.5",
    "SoftmaxParameter": "axis:2:int32=1",
    "FlattenParameter": "axis:1:int32=1 end_axis:2:int32=-1",
    "ReshapeParameter": "shape:1:BlobShape axis:2:int32 num_axes:3:int32=-1",
    "SliceParameter": "slice_dim:1:uint32=1 slice_point:2:uint32* axis:3:int32=1",
    "CropParameter": "axis:1:int32=2 offset:2:uint32*",
    "PowerParameter": "power:1:float=1 scale:2:float=1 shift:3:float",
    "ELUParameter": "alpha:1:float=1",
    "InputParameter": "shape:1:BlobShape*",
    "LayerParameter": """
        name:1:string type:2:string bottom:3:string* top:4:string* blobs:7:BlobProto*
        include:8:NetStateRule* exclude:9:NetStateRule* concat_param:104:ConcatParameter
        convolution_param:106:ConvolutionParameter dropout_param:108:DropoutParameter
        eltwise_param:110:EltwiseParameter inner_product_param:117:InnerProductParameter
        lrn_param:118:LRNParameter pooling_param:121:PoolingParameter power_param:122:PowerParameter
        relu_param:123:ReLUParameter softmax_param:125:SoftmaxParameter
        slice_param:126:SliceParameter prelu_param:131:PReLUParameter
        reshape_param:133:ReshapeParameter
        flatten_param:135:FlattenParameter batch_norm_param:139:BatchNormParameter
        elu_param:140:ELUParameter scale_param:142:ScaleParameter input_param:143:InputParameter
        crop_param:144:CropParameter
    """,
    "V1LayerParameter": """
        bottom:2:string* top:3:string* name:4:string type:5:V1LayerType blobs:6:BlobProto*
        concat_param:9:ConcatParameter convolution_param:10:ConvolutionParameter
        dropout_param:12:DropoutParameter inner_product_param:17:InnerProductParameter
        lrn_param:18:LRNParameter pooling_param:19:PoolingParameter power_param:21:PowerParameter
        eltwise_param:24:EltwiseParameter relu_param:30:ReLUParameter slice_param:31:SliceParameter
        include:32:NetStateRule* exclude:33:NetStateRule* softmax_param:39:SoftmaxParameter
    """,
    "NetParameter": """
        name:1:string layers:2:V1LayerParameter* input:3:string* input_dim:4:int32*
        input_shape:8:BlobShape* layer:100:LayerParameter*
    """,
}


@functools.cache
def net_class() -> Any:
    """Caffe's `NetParameter`: a network, with or without its weights."""
    messages = {
        name: [_field(text) for text in fields.split()] for name, fields in MESSAGES.items()
    }
    enums = {name: values.split() for name, values in ENUMS.items()}
    return declare("caffe", "proto2", messages, enums)["NetParameter"]


def _field(text: str) -> Field:
    name, number, kind = text.split(":")
    kind, _, default = kind.partition("=")
    repeated = kind.endswith("*")
    return Field(name, int(number), kind.rstrip("*"), repeated, default=default or None)

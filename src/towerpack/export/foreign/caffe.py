"""Caffe networks: reads their two files, and gives their weights by name and a tower function."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.dataflow.format.proto import declare
from towerpack.export.foreign.caffe_layers import (
    FLAT,
    LAYERS,
    UNKNOWN,
    WEIGHT_NAMES,
    CaffeLayer,
    channels_after,
    layer_weights,
)
from towerpack.tower import TowerFunc

TEST = 1  # the number of the phase
# Layers for training and for Caffe's own data formats, which inference does not need.
LEFT_OUT = ("Accuracy", "Input", "Silence")
LEFT_OUT_ENDINGS = ("Data", "Loss")
# Types of V1 layers whose names are not simply capitalized: INNER_PRODUCT is InnerProduct.
V1_NAMES = {
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "LRN": "LRN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}

# Caffe's messages, as far as inference needs them; other fields of a file are skipped. V1LayerType
# numbers the types of layers in files from before 2014.
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

# `name:number:type`, followed by `*` if repeated and by `=value` for a default other than zero.
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

Shapes = Mapping[str, Sequence[int]]


@dataclass
class CaffeNet:
    """Layers in order, and the inputs with their shapes, batch first and channels second."""

    layers: list[CaffeLayer]
    inputs: dict[str, list[int]]

    def channels(self) -> dict[str, int]:
        """The number of channels of each blob that is an image; FLAT or UNKNOWN for the others."""
        found = {name: shape[1] if len(shape) == 4 else FLAT for name, shape in self.inputs.items()}
        for layer in self.layers:
            if layer.bottoms:
                given = [found.get(bottom, UNKNOWN) for bottom in layer.bottoms]
                found.update(zip(layer.tops, channels_after(layer, given), strict=True))
        return found


def load_caffe(
    prototxt: str | Path, caffemodel: str | Path, input_shapes: Shapes | None = None
) -> dict[str, np.ndarray]:
    """The weights of a Caffe model by name, in the order of channels-last layers.

    | layer | names | order |
    | --- | --- | --- |
    | Convolution | `W`, `b` | HWIO |
    | Deconvolution | `W`, `b` | HW, out, in |
    | InnerProduct | `W`, `b` | in x out; the inputs of an image are HWC instead of CHW |
    | BatchNorm | `mean/EMA`, `variance/EMA` | divided by Caffe's factor |
    | Scale | `gamma`, `beta` | under the name of the BatchNorm that it follows, if it does |
    | PReLU | `alpha` | |

    Neither Caffe nor protoc is needed. The result can be given to `SmartInit`; the tower of
    `caffe_to_tower` has the same names. A warning names layers of other types that have weights.
    `input_shapes` is for networks that declare no inputs, as in `caffe_to_tower`.
    """
    net = read_prototxt(prototxt, input_shapes)
    blobs = {layer.name: layer.blobs for layer in read_caffemodel(caffemodel).layers}
    channels = net.channels()
    values: dict[str, np.ndarray] = {}
    unknown = []
    for layer in net.layers:
        layer.blobs = blobs.get(layer.name, [])
        if layer.blobs and layer.type not in WEIGHT_NAMES:
            unknown.append(f"{layer.name} ({layer.type})")
        elif layer.blobs:
            found = layer_weights(layer, channels.get(layer.bottoms[0], UNKNOWN))
            values.update({f"{layer.scope}/{name}": x for name, x in found.items()})
    if unknown:
        logger.warning("the weights of these layers are left out: %s", ", ".join(unknown))
    return values


def caffe_to_tower(prototxt: str | Path, input_shapes: Shapes | None = None) -> TowerFunc:
    """The network of a `.prototxt` as a tower function, channels last, with any batch size.

    Its inputs are the network's, [batch, height, width, channels] where Caffe has channels second.
    The result of layer `L` is the tensor `L/output`; its variables have the names of `load_caffe`:

        tower = caffe_to_tower("deploy.prototxt")
        weights = load_caffe("deploy.prototxt", "net.caffemodel")
        config = PredictConfig(tower_func=tower, output_names=["prob/output"], session_init=weights)

    `input_shapes` adds or replaces shapes of inputs, in Caffe's order. Layers for training (losses,
    accuracy) are left out. Layers of unknown types raise an error that names all of them.
    """
    net = read_prototxt(prototxt, input_shapes)
    if not net.inputs:
        raise ValueError(
            f"{prototxt} declares no inputs: pass input_shapes={{'data': [1, 3, 224, 224]}}"
        )
    layers = [
        layer
        for layer in net.layers
        if layer.type not in LEFT_OUT and not layer.type.endswith(LEFT_OUT_ENDINGS)
    ]
    unknown = {f"{layer.type} ({layer.name})" for layer in layers if layer.type not in LAYERS}
    if unknown:
        raise ValueError(
            f"expected layers of {sorted(LAYERS)} in {prototxt}, received also "
            f"{', '.join(sorted(unknown))}; remove them from the file, or write that part as a "
            "tower function"
        )

    def tower(*inputs: Any) -> dict[str, Any]:
        tensors = dict(zip(net.inputs, inputs, strict=True))
        for layer in layers:
            try:
                made = layer.build([tensors[bottom] for bottom in layer.bottoms])
            except Exception as error:
                error.add_note(f"in the Caffe layer {layer.name!r} ({layer.type})")
                raise
            for place, (top, tensor) in enumerate(zip(layer.tops, made, strict=True)):
                name = f"{layer.name}/output" + (f"_{place}" if place else "")
                tensors[top] = tf.identity(tensor, name=name)
        return tensors

    return TowerFunc(tower, [_spec(name, shape) for name, shape in net.inputs.items()])


def _spec(name: str, shape: list[int]) -> Any:
    _, *dims = shape
    if len(dims) == 3:
        dims = [*dims[1:], dims[0]]
    return tf.TensorSpec([None, *dims], tf.float32, _tf_name(name).replace("/", "_"))


def read_prototxt(path: str | Path, input_shapes: Shapes | None = None) -> CaffeNet:
    """The network of a `.prototxt` file in the test phase; `input_shapes` replace its own."""
    text_format = require("google.protobuf.text_format", extra="protobuf")
    parse = functools.partial(text_format.Parse, allow_unknown_field=True)
    net = _read(path, "a network", parse)
    net.inputs.update({name: list(shape) for name, shape in (input_shapes or {}).items()})
    return net


def read_caffemodel(path: str | Path) -> CaffeNet:
    """The layers of a `.caffemodel` file, with their weights."""
    return _read(path, "a caffemodel", lambda data, message: message.ParseFromString(data))


def _read(path: str | Path, kind: str, parse: Callable[[bytes, Any], Any]) -> CaffeNet:
    net, data = net_class()(), Path(path).read_bytes()
    try:
        parse(data, net)
    except Exception as error:  # protobuf's own
        raise ValueError(f"expected {kind} in {path}: {error}") from error
    if net.layers and net.layer:
        raise ValueError("expected layers of one version, received V1 and V2 in one file")
    layers = [_layer(message) for message in net.layers or net.layer if _in_test(message)]
    _name_scopes(layers)
    inputs: dict[str, list[int]] = {}
    for place, name in enumerate(net.input):
        if net.input_shape:
            inputs[name] = list(net.input_shape[place].dim)
        else:
            inputs[name] = list(net.input_dim[4 * place : 4 * place + 4])
    for layer in layers:
        if layer.type == "Input":
            shapes = layer.message.input_param.shape
            for place, top in enumerate(layer.tops):
                inputs[top] = list(shapes[min(place, len(shapes) - 1)].dim)
    return CaffeNet(layers, inputs)


def _name_scopes(layers: list[CaffeLayer]) -> None:
    """Names the variables after the layer; a Scale that follows a BatchNorm shares its scope."""
    writers: dict[str, CaffeLayer] = {}
    for layer in layers:
        before = writers.get(layer.bottoms[0]) if layer.bottoms else None
        follows = layer.type == "Scale" and before is not None and before.type == "BatchNorm"
        layer.scope = before.name if follows and before else layer.name
        writers.update(dict.fromkeys(layer.tops, layer))


def _layer(message: Any) -> CaffeLayer:
    kind = message.type
    if not isinstance(kind, str):
        old = ENUMS["V1LayerType"].split()[kind]
        kind = V1_NAMES.get(old, "".join(word.capitalize() for word in old.split("_")))
    blobs = [_array(blob) for blob in message.blobs]
    return CaffeLayer(
        _tf_name(message.name), kind, list(message.bottom), list(message.top), message, blobs
    )


def _tf_name(name: str) -> str:
    """A layer's name with the characters that TensorFlow allows.

    >>> _tf_name("conv1(a)/3x3")
    'conv1_a_/3x3'
    """
    name = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name)
    return name if re.match(r"[A-Za-z0-9.]", name) else f"l{name}"


def _in_test(message: Any) -> bool:
    if any(rule.HasField("phase") and rule.phase == TEST for rule in message.exclude):
        return False
    rules = [rule for rule in message.include if rule.HasField("phase")]
    return not rules or any(rule.phase == TEST for rule in rules)


def _array(blob: Any) -> np.ndarray:
    data = np.array(blob.data or blob.double_data, np.float32)
    if blob.HasField("shape"):
        shape = list(blob.shape.dim)
    else:
        shape = [blob.num, blob.channels, blob.height, blob.width]
    if data.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"expected a blob of shape {shape}, received {data.size} numbers")
    return data.reshape(shape)


@functools.cache
def net_class() -> Any:
    """Caffe's `NetParameter`: a network, with or without its weights."""
    return declare("caffe", "proto2", MESSAGES, ENUMS)["NetParameter"]

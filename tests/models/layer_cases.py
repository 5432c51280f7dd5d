"""One small call of every layer, for the laws that all of them obey."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from towerpack import models
from towerpack._tensorflow import tf

IMAGE = (2, 4, 6, 4)
SEQUENCE = (2, 5, 4)
VECTOR = (3, 4)


@dataclass(frozen=True)
class Case:
    """A call `layer("it", x, **arguments)`, and what it must give."""

    input: tuple[int, ...]
    output: tuple[int, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    state: dict[str, tuple[int, ...]] = field(default_factory=dict)  # without gradients
    known: bool = False  # needs to know more than the last size of its input
    random: bool = False  # in training
    classes: int = 0  # whole numbers below this as input

    def data(self) -> np.ndarray:
        generator = np.random.default_rng(0)
        if self.classes:
            return generator.integers(0, self.classes, self.input).astype(np.int32)
        return generator.normal(size=self.input).astype(np.float32)

    def spec(self, dtype: Any, channels_first: bool = False) -> tf.TensorSpec:
        """The input with every size unknown that the layer can do without."""
        if self.known:
            shape = [None, *self.input[1:]]
        elif self.classes:
            shape = [None] * len(self.input)
        else:
            shape = [None] * (len(self.input) - 1) + [self.input[-1]]
        if channels_first:
            shape = [shape[0], shape[-1], *shape[1:-1]]
        return tf.TensorSpec(shape, dtype)


def norm(channels: int) -> dict[str, tuple[int, ...]]:
    return {"beta": (channels,), "gamma": (channels,)}


def averages(channels: int) -> dict[str, tuple[int, ...]]:
    return {"mean/EMA": (channels,), "variance/EMA": (channels,)}


def heads(names: str, size: int, count: int) -> dict[str, tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {}
    for name in names.split():
        made |= {f"{name}/W": (size, count, size // count), f"{name}/b": (count, size // count)}
    return made


def elementwise(**arguments: Any) -> Case:
    return Case(IMAGE, IMAGE, arguments)


ATTENTION = {
    **heads("query key value", 4, 2),
    "out/W": (2, 2, 4),
    "out/b": (4,),
}

CASES = {
    "AvgPooling": Case(IMAGE, (2, 2, 3, 4), {"pool_size": 2}),
    "BNReLU": Case(
        IMAGE,
        IMAGE,
        variables={f"bn/{name}": shape for name, shape in norm(4).items()},
        state={f"bn/{name}": shape for name, shape in averages(4).items()},
    ),
    "BatchNorm": Case(IMAGE, IMAGE, {"momentum": 0.5}, norm(4), averages(4)),
    # At these limits it is BatchNorm; where it differs, it stops gradients on purpose.
    "BatchRenorm": Case(IMAGE, IMAGE, {"rmax": 1.0, "dmax": 0.0}, norm(4), averages(4)),
    "ConcatWith": Case(VECTOR, (3, 6), {"tensor": tf.ones([3, 2]), "dim": 1}),
    "Conv1D": Case(
        SEQUENCE,
        (2, 3, 6),
        {"filters": 6, "kernel_size": 3, "strides": 2},
        {"W": (3, 4, 6), "b": (6,)},
    ),
    "Conv2D": Case(
        IMAGE,
        (2, 2, 3, 6),
        {"filters": 6, "kernel_size": (3, 2), "strides": 2, "split": 2, "activation": tf.nn.tanh},
        {"W": (3, 2, 2, 6), "b": (6,)},
    ),
    "Conv2DTranspose": Case(
        IMAGE,
        (2, 9, 13, 3),
        {"filters": 3, "kernel_size": 3, "strides": 2, "padding": "valid"},
        {"W": (3, 3, 3, 4), "b": (3,)},
    ),
    "Conv3D": Case(
        (1, 3, 4, 3, 2),
        (1, 3, 4, 3, 3),
        {"filters": 3, "kernel_size": (2, 3, 1)},
        {"W": (2, 3, 1, 2, 3), "b": (3,)},
    ),
    "DepthwiseConv2D": Case(
        IMAGE,
        (2, 2, 4, 8),
        {"kernel_size": 3, "depth_multiplier": 2, "padding": "valid"},
        {"W": (3, 3, 4, 2), "b": (8,)},
    ),
    "Dropout": Case(IMAGE, IMAGE, {"rate": 0.4}, random=True),
    "ELU": elementwise(),
    "Embedding": Case(
        (3, 2), (3, 2, 4), {"input_dim": 7, "output_dim": 4}, {"W": (7, 4)}, classes=7
    ),
    "FixedUnPooling": Case(IMAGE, (2, 8, 18, 4), {"shape": (2, 3)}),
    "FullyConnected": Case(IMAGE, (2, 5), {"units": 5}, {"W": (96, 5), "b": (5,)}, known=True),
    "GELU": elementwise(approximate=True),
    "GRU": Case(SEQUENCE, (2, 5, 3), {"units": 3}, {"W": (4, 9), "U": (3, 9), "b": (2, 9)}),
    "GlobalAvgPooling": Case(IMAGE, (2, 4)),
    "GlobalMaxPooling": Case(IMAGE, (2, 4)),
    "GroupNorm": Case(IMAGE, IMAGE, {"groups": 2}, norm(4)),
    "InstanceNorm": Case(IMAGE, IMAGE, {"epsilon": 1e-4}, norm(4)),
    "LSTM": Case(
        SEQUENCE,
        (2, 3),
        {"units": 3, "return_sequences": False},
        {"W": (4, 12), "U": (3, 12), "b": (12,)},
    ),
    "LayerNorm": Case(IMAGE, IMAGE, {"epsilon": 1e-4}, norm(4)),
    "LeakyReLU": elementwise(alpha=0.3),
    "MaxPooling": Case(IMAGE, (2, 2, 3, 4), {"pool_size": 2, "strides": 2, "padding": "same"}),
    "Maxout": Case(IMAGE, (2, 4, 6, 2), {"num_unit": 2}),
    "MultiHeadAttention": Case(SEQUENCE, SEQUENCE, {"num_heads": 2, "causal": True}, ATTENTION),
    "PReLU": Case(IMAGE, IMAGE, {"init": 0.25}, {"alpha": ()}),
    "PixelShuffle": Case(IMAGE, (2, 8, 12, 1), {"scale": 2}),
    "RMSNorm": Case(SEQUENCE, SEQUENCE, {"epsilon": 1e-5}, {"gamma": (4,)}),
    "ReLU": elementwise(),
    "SELU": elementwise(),
    "SeparableConv2D": Case(
        IMAGE,
        (2, 4, 6, 5),
        {"filters": 5, "kernel_size": 3, "depth_multiplier": 2},
        {"depthwise/W": (3, 3, 4, 2), "W": (1, 1, 8, 5), "b": (5,)},
    ),
    "SiLU": elementwise(),
    "Sigmoid": elementwise(),
    "Softmax": elementwise(axis=2),
    "Softplus": elementwise(),
    # Many iterations: the gradient takes the singular vectors as fixed, which is exact only then.
    "SpectralNorm": Case(
        IMAGE,
        (2, 4, 6, 3),
        {
            "layer": models.Conv2D,
            "arguments": {"filters": 3, "kernel_size": 2},
            "iterations": 60,
        },
        {"W": (2, 2, 4, 3), "b": (3,)},
        {"u": (1, 3)},
    ),
    "SqueezeExcite": Case(
        IMAGE,
        IMAGE,
        {"ratio": 2},
        {"squeeze/W": (4, 2), "squeeze/b": (2,), "excite/W": (2, 4), "excite/b": (4,)},
    ),
    "StochasticDepth": Case(IMAGE, IMAGE, {"rate": 0.4}, random=True),
    "Tanh": elementwise(),
    "TransformerBlock": Case(
        SEQUENCE,
        SEQUENCE,
        {"num_heads": 2, "hidden_dim": 6},
        {
            **{f"attention/{name}": shape for name, shape in ATTENTION.items()},
            **{f"norm0/{name}": shape for name, shape in norm(4).items()},
            **{f"norm1/{name}": shape for name, shape in norm(4).items()},
            "fc0/W": (4, 6),
            "fc0/b": (6,),
            "fc1/W": (6, 4),
            "fc1/b": (4,),
        },
    ),
    "UpSampling": Case(IMAGE, (2, 8, 12, 4), {"size": 2, "interpolation": "bilinear"}),
}

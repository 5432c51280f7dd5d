"""Nonlinearities: those with parameters, and the usual ones as layers of a chain."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.batch_norm import BatchNorm
from towerpack.models.registry import VariableHolder, layer_register
from towerpack.models.shapes import expect_rank, size_of


@layer_register(use_scope=None)
def Maxout(x: Any, num_unit: int) -> Any:
    """The maximum of each `num_unit` neighbouring channels; 2-D and 4-D inputs, channels last."""
    rank = expect_rank(x, 2, 4)
    channels = x.shape[-1]
    if channels is None or channels % num_unit:
        raise ValueError(f"num_unit={num_unit} must divide the channels, which are {channels}")
    kept = [size_of(x, axis) for axis in range(rank - 1)]
    return tf.reduce_max(tf.reshape(x, [*kept, channels // num_unit, num_unit]), -1)


@layer_register()
def PReLU(x: Any, init: float = 0.001) -> Any:
    """`x` where it is positive, `alpha * x` elsewhere; `alpha` is one trained number."""
    alpha = v1.get_variable("alpha", [], dtype=x.dtype, initializer=v1.constant_initializer(init))
    output = tf.maximum(x, 0) + alpha * tf.minimum(x, 0)
    output.variables = VariableHolder(alpha=alpha)
    return output


@layer_register(use_scope=None)
def BNReLU(x: Any) -> Any:
    """`BatchNorm` under the name 'bn', then ReLU; serves as an `activation`.

    An argscope of `BatchNorm` reaches it.

        x = Conv2D("conv0", x, 32, 3, activation=BNReLU)
    """
    normal = BatchNorm("bn", x)
    output = tf.nn.relu(normal)
    output.variables = normal.variables
    return output


@layer_register(use_scope=None)
def ReLU(x: Any) -> Any:
    """max(x, 0)."""
    return tf.nn.relu(x)


@layer_register(use_scope=None, renamed={"leak": "alpha"})
def LeakyReLU(x: Any, alpha: float = 0.2) -> Any:
    """`x` where it is positive, `alpha * x` elsewhere."""
    return tf.nn.leaky_relu(x, alpha)


@layer_register(use_scope=None)
def ELU(x: Any) -> Any:
    """`x` where it is positive, exp(x) - 1 elsewhere."""
    return tf.nn.elu(x)


@layer_register(use_scope=None)
def SELU(x: Any) -> Any:
    """The self-normalizing exponential unit."""
    return tf.nn.selu(x)


@layer_register(use_scope=None)
def GELU(x: Any, *, approximate: bool = False) -> Any:
    """`x` times the normal distribution's probability of being below `x`."""
    return tf.nn.gelu(x, approximate)


@layer_register(use_scope=None)
def SiLU(x: Any) -> Any:
    """X * sigmoid(x), also known as Swish."""
    return tf.nn.silu(x)


@layer_register(use_scope=None)
def Sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return tf.nn.sigmoid(x)


@layer_register(use_scope=None)
def Tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return tf.nn.tanh(x)


@layer_register(use_scope=None)
def Softplus(x: Any) -> Any:
    """log(1 + exp(x))."""
    return tf.nn.softplus(x)


@layer_register(use_scope=None)
def Softmax(x: Any, *, axis: int = -1) -> Any:
    """Positive numbers that add up to one along the axis."""
    return tf.nn.softmax(x, axis)

"""Layers that act on each element: nonlinearities and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.norms import BatchNorm
from towerpack.models.registry import layer_named, layer_register
from towerpack.models.shapes import expect_rank, size_of
from towerpack.models.variables import VariableHolder, in_training
from towerpack.tower import get_current_tower_context
from towerpack.tower.determinism import step_seed


@layer_register(use_scope=None)
def Maxout(x: Any, num_unit: int) -> Any:
    """The maximum over groups of `num_unit` channels; 2-D and 4-D inputs with channels last."""
    rank = expect_rank(x, 2, 4)
    channels = x.shape[-1]
    if channels is None or channels % num_unit:
        raise ValueError(f"num_unit={num_unit} must divide the channels, which are {channels}")
    kept = [size_of(x, axis) for axis in range(rank - 1)]
    return tf.reduce_max(tf.reshape(x, [*kept, channels // num_unit, num_unit]), -1)


@layer_register(log_shape=True)
def PReLU(x: Any, init: float = 0.001) -> Any:
    """`x` where it is positive, `alpha * x` elsewhere; `alpha` is one trained number."""
    alpha = v1.get_variable("alpha", [], dtype=x.dtype, initializer=v1.constant_initializer(init))
    output = tf.maximum(x, 0) + alpha * tf.minimum(x, 0)
    output.variables = VariableHolder(alpha=alpha)
    return output


@layer_register(use_scope=None)
def BNReLU(x: Any) -> Any:
    """`BatchNorm` under the name 'bn', then ReLU; can be used as an `activation`.

    An argscope of `BatchNorm` applies to it.

        x = Conv2D("conv0", x, 32, 3, activation=BNReLU)
    """
    normal = BatchNorm("bn", x)
    output = tf.nn.relu(normal)
    output.variables = normal.variables
    return output


@layer_register(use_scope=None)
def LeakyReLU(x: Any, alpha: float = 0.2) -> Any:
    """`x` where it is positive, `alpha * x` elsewhere."""
    return tf.nn.leaky_relu(x, alpha)


@layer_register(use_scope=None)
def GELU(x: Any, *, approximate: bool = False) -> Any:
    """`x` times the probability that a standard normal variable is below `x`."""
    return tf.nn.gelu(x, approximate)


@layer_register(use_scope=None)
def Softmax(x: Any, *, axis: int = -1) -> Any:
    """Positive numbers that add up to one along the axis."""
    return tf.nn.softmax(x, axis)


def _elementwise(name: str, function: Callable[[Any], Any], doc: str) -> Callable[..., Any]:
    """A function of TensorFlow as a layer without arguments."""

    @layer_named(name, doc, use_scope=None)
    def layer(x: Any) -> Any:
        return function(x)

    return layer


ReLU = _elementwise("ReLU", tf.nn.relu, "max(x, 0).")
ELU = _elementwise("ELU", tf.nn.elu, "`x` where it is positive, exp(x) - 1 elsewhere.")
SELU = _elementwise("SELU", tf.nn.selu, "The self-normalizing exponential linear unit.")
SiLU = _elementwise("SiLU", tf.nn.silu, "`x` * sigmoid(x), also known as Swish.")
Sigmoid = _elementwise("Sigmoid", tf.nn.sigmoid, "1 / (1 + exp(-x)).")
Tanh = _elementwise("Tanh", tf.nn.tanh, "The hyperbolic tangent.")
Softplus = _elementwise("Softplus", tf.nn.softplus, "log(1 + exp(x)).")


@layer_register(use_scope=None)
def Dropout(
    x: Any,
    keep_prob: float | None = None,
    *,
    rate: float | None = None,
    noise_shape: Any = None,
    training: bool | None = None,
) -> Any:
    """Drops random elements in training and scales up the others.

    A positional number is the probability to **keep** an element; `rate=` is the probability to
    drop it. The default is one half. `training` defaults to the purpose of the tower. The dropped
    elements depend only on the model's seed and the step, so a resumed run drops the same ones.
    """
    if keep_prob is not None and rate is not None:
        raise TypeError("give either keep_prob (by position) or rate=, not both")
    if rate is None:
        rate = 0.5 if keep_prob is None else 1 - keep_prob
    return _drop(x, rate, training, lambda: noise_shape)


@layer_register(use_scope=None)
def StochasticDepth(x: Any, *, rate: float, training: bool | None = None) -> Any:
    """Drops random datapoints of a residual branch in training and scales up the others.

    x = x + StochasticDepth(branch, rate=0.1)
    """
    return _drop(x, rate, training, lambda: [tf.shape(x)[0]] + [1] * (x.shape.rank - 1))


def _drop(x: Any, rate: float, training: bool | None, noise_shape: Callable[[], Any]) -> Any:
    if not 0 <= rate < 1:
        raise ValueError(f"expected a rate in [0, 1), received {rate}")
    if not in_training(training) or not rate:
        return tf.identity(x)
    context = get_current_tower_context()
    if context is None or not context.is_training:
        # Dropout in inference, by `training=True`: each call draws new random numbers.
        return tf.nn.dropout(x, rate=rate, noise_shape=noise_shape())
    return tf.nn.experimental.stateless_dropout(
        x, rate, seed=step_seed("dropout"), noise_shape=noise_shape(), rng_alg="philox"
    )

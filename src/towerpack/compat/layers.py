"""The layers as tensorpack's scripts call them, with the old names of their arguments.

    from towerpack import *
    from towerpack.compat.layers import *

    with argscope(Conv2D, kernel_shape=3, nl=tf.nn.relu):
        logits = LinearWrap(image).Conv2D("conv0", 32).FullyConnected("fc0", out_dim=10)()

The layers, `argscope` and `LinearWrap` of this module translate old names into the new ones and
call those of `towerpack.models`. Old and new names may be mixed, in one model and in one call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from towerpack import models
from towerpack.compat.arguments import renamed
from towerpack.tower import TowerContext

__all__ = [
    "AvgPooling",
    "BaseTowerContext",
    "BatchNorm",
    "BatchRenorm",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Deconv2D",
    "DepthwiseConv2D",
    "Dropout",
    "FullyConnected",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "LeakyReLU",
    "LinearWrap",
    "MaxPooling",
    "RMSNorm",
    "SeparableConv2D",
    "argscope",
    "enable_argscope_for_function",
    "enable_argscope_for_module",
]

_WEIGHTS = {"nl": "activation", "W_init": "kernel_initializer", "b_init": "bias_initializer"}
_DEPTHWISE = {**_WEIGHTS, "kernel_shape": "kernel_size", "stride": "strides"}
_CONV = {**_DEPTHWISE, "out_channel": "filters"}
_POOL = {"shape": "pool_size", "stride": "strides"}
_SCALE = {"use_scale": "scale", "gamma_init": "gamma_initializer"}
_NORM = {**_SCALE, "use_bias": "center"}
_BATCH_NORM = {**_NORM, "use_local_stat": "training", "decay": "momentum"}

_NEW_NAMES: dict[Callable[..., Any], dict[str, str]] = {
    models.Conv1D: _CONV,
    models.Conv2D: _CONV,
    models.Conv3D: _CONV,
    models.Conv2DTranspose: _CONV,
    models.SeparableConv2D: _CONV,
    models.DepthwiseConv2D: _DEPTHWISE,
    models.FullyConnected: {**_WEIGHTS, "out_dim": "units"},
    models.MaxPooling: _POOL,
    models.AvgPooling: _POOL,
    models.BatchNorm: _BATCH_NORM,
    models.BatchRenorm: _BATCH_NORM,
    models.LayerNorm: _NORM,
    models.InstanceNorm: _NORM,
    models.GroupNorm: {**_NORM, "group": "groups"},
    models.RMSNorm: _SCALE,
    models.Dropout: {"is_training": "training"},
    models.LeakyReLU: {"leak": "alpha"},
}
_NEW_LAYERS = {"Deconv2D": "Conv2DTranspose"}

BaseTowerContext = TowerContext


def _adapted(layer: Callable[..., Any]) -> Callable[..., Any]:
    return renamed(layer, **_NEW_NAMES[layer])


Conv1D = _adapted(models.Conv1D)
Conv2D = _adapted(models.Conv2D)
Conv3D = _adapted(models.Conv3D)
Conv2DTranspose = Deconv2D = _adapted(models.Conv2DTranspose)
SeparableConv2D = _adapted(models.SeparableConv2D)
DepthwiseConv2D = _adapted(models.DepthwiseConv2D)
FullyConnected = _adapted(models.FullyConnected)
MaxPooling = _adapted(models.MaxPooling)
AvgPooling = _adapted(models.AvgPooling)
BatchNorm = _adapted(models.BatchNorm)
BatchRenorm = _adapted(models.BatchRenorm)
LayerNorm = _adapted(models.LayerNorm)
InstanceNorm = _adapted(models.InstanceNorm)
GroupNorm = _adapted(models.GroupNorm)
RMSNorm = _adapted(models.RMSNorm)
Dropout = _adapted(models.Dropout)
LeakyReLU = _adapted(models.LeakyReLU)


@contextlib.contextmanager
def argscope(layers: Callable | Sequence[Callable], **arguments: Any) -> Iterator[None]:
    """`towerpack.argscope` for arguments under their old or new names."""
    with contextlib.ExitStack() as stack:
        for layer in layers if isinstance(layers, list | tuple) else [layers]:
            scope = renamed(models.argscope, **_new_names(layer))
            stack.enter_context(scope(layer, **arguments))
        yield


def _new_names(layer: Any) -> dict[str, str]:
    """{old: new} of the arguments of a layer, be it this module's or that of `models`."""
    return _NEW_NAMES.get(layer) or _NEW_NAMES.get(getattr(layer, "__wrapped__", layer), {})


class LinearWrap(models.LinearWrap):
    """`towerpack.LinearWrap` whose layers also take the old names of their arguments."""

    @staticmethod
    def _find_layer(name: str) -> Callable[..., Any] | None:
        find = models.get_registered_layer
        layer = find(name) or find(_NEW_LAYERS.get(name, name))
        return layer and renamed(layer, **_new_names(layer))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_NEW_LAYERS})


def enable_argscope_for_function(
    func: Callable[..., Any], log_shape: bool = True
) -> Callable[..., Any]:
    """`towerpack.enable_argscope_for_function`; `log_shape` has no effect."""
    del log_shape
    return models.enable_argscope_for_function(func)


def enable_argscope_for_module(module: ModuleType, log_shape: bool = True) -> contextlib.ExitStack:
    """`towerpack.enable_argscope_for_module`; `log_shape` has no effect."""
    del log_shape
    return models.enable_argscope_for_module(module)

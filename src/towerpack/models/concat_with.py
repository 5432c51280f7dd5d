"""Joining tensors in a chain."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.registry import layer_register


@layer_register(use_scope=None)
def ConcatWith(x: Any, tensor: Any, dim: int) -> Any:
    """`x`, then the tensor or the list of tensors, joined along the axis `dim`.

    x = LinearWrap(x).Conv2D("conv0", 8, 3).ConcatWith(x, 3)()
    """
    others = tensor if isinstance(tensor, list | tuple) else [tensor]
    return tf.concat([x, *others], dim)

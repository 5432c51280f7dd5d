"""Chains of layers that read from top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.argscope import did_you_mean
from towerpack.models.registry import get_registered_layer, layer_names, layer_register


class LinearWrap:
    """Wraps a tensor so that layers can be called on it one after another.

        logits = (LinearWrap(image)
                  .Conv2D("conv0", 32, 3)
                  .MaxPooling("pool0", 2)
                  .tf.nn.relu()
                  .FullyConnected("fc", 10)())

    `.Layer(name, ...)` calls a registered layer. `.tf.<function>(...)` calls a function of
    TensorFlow and `.apply(f, ...)` any function with the tensor as the first argument;
    `.apply2(f, name, ...)` passes it as the second. Calling the chain itself returns the tensor.
    """

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def __getattr__(self, name: str) -> Callable[..., LinearWrap]:
        if name.startswith("__"):
            raise AttributeError(name)
        layer = self._find_layer(name)
        if layer is None:
            raise AttributeError(
                f"no layer is registered as {name!r}{did_you_mean(name, layer_names())} To call "
                "another function, use .apply(f, ...) or .tf.<function>(...)"
            )

        def call(*args: Any, **kwargs: Any) -> LinearWrap:
            if args and isinstance(args[0], str):
                return type(self)(layer(args[0], self._tensor, *args[1:], **kwargs))
            return type(self)(layer(self._tensor, *args, **kwargs))

        return call

    @staticmethod
    def _find_layer(name: str) -> Callable[..., Any] | None:
        return get_registered_layer(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *layer_names()})

    def __repr__(self) -> str:
        return f"LinearWrap({self._tensor!r})"

    @property
    def tf(self) -> _TensorFlowPath:
        return _TensorFlowPath(self, tf, "tf")

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> LinearWrap:
        return type(self)(func(self._tensor, *args, **kwargs))

    def apply2(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> LinearWrap:
        return type(self)(func(args[0], self._tensor, *args[1:], **kwargs))

    def print_tensor(self) -> LinearWrap:
        """Prints the tensor's description while the tower is built."""
        print(self._tensor)  # noqa: T201 (printing is its purpose)
        return self

    def tensor(self) -> Any:
        return self._tensor

    def __call__(self) -> Any:
        return self._tensor


class _TensorFlowPath:
    """`.tf.nn.relu`: a dotted path into TensorFlow, called with the chain's tensor first."""

    def __init__(self, chain: LinearWrap, target: Any, path: str):
        self._chain, self._target, self._path = chain, target, path

    def __getattr__(self, name: str) -> _TensorFlowPath:
        found = getattr(self._target, name, None)
        if found is None:
            hint = did_you_mean(name, dir(self._target))
            raise AttributeError(f"{self._path} has no {name!r}{hint}")
        return _TensorFlowPath(self._chain, found, f"{self._path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> LinearWrap:
        if not callable(self._target):
            raise TypeError(f"{self._path} is not a function")
        return self._chain.apply(self._target, *args, **kwargs)


@layer_register(use_scope=None)
def ConcatWith(x: Any, tensor: Any, dim: int) -> Any:
    """Concatenates `x` with a tensor or a list of tensors along the axis `dim`.

    x = LinearWrap(x).Conv2D("conv0", 8, 3).ConcatWith(x, 3)()
    """
    others = tensor if isinstance(tensor, list | tuple) else [tensor]
    return tf.concat([x, *others], dim)

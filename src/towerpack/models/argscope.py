"""Default arguments of layers within a block of code."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Scope = dict[str, dict[str, Any]]
# A context variable, so that threads that build towers at the same time do not see each other's.
_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("argscope", default=None)


@contextlib.contextmanager
def argscope(layers: Callable | Sequence[Callable], **arguments: Any) -> Iterator[None]:
    """Within the block, gives layers these arguments unless the call says otherwise.

    Positional arguments win over keywords of the call, these over the innermost argscope, that over
    outer ones, and all over the layer's defaults. Leaving the block restores what was, also by an
    exception. Names are checked on entering.

        with argscope(Conv2D, kernel_size=3, activation=tf.nn.relu):
            x = Conv2D("conv0", x, 32)
    """
    chosen: list[Any] = list(layers) if isinstance(layers, list | tuple) else [layers]
    updated = {name: dict(kwargs) for name, kwargs in get_arg_scope().items()}
    for layer in chosen:
        check = getattr(layer, "check_arguments", None)
        if check is None:
            raise TypeError(
                f"argscope takes layers registered with layer_register, received {layer!r}"
            )
        check(arguments)
        updated.setdefault(layer.__name__, {}).update(arguments)
    token = _scope.set(updated)
    try:
        yield
    finally:
        _scope.reset(token)


def get_arg_scope() -> Scope:
    """The defaults in force here: {layer name: {argument: value}}."""
    return _scope.get() or {}

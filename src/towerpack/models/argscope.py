"""Default arguments of layers within a block of code."""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class ArgScope(dict[str, dict[str, Any]]):
    """{layer name: {argument: value}}, with a text form that is the same in every run.

    `repr` and `to_json` give functions and objects by their dotted names, never by an address, so
    that the settings of a run can be logged and compared.

    >>> ArgScope(Dropout={"rate": 0.5, "training": None})
    argscope(Dropout, rate=0.5, training=None)
    >>> ArgScope(Dropout={"rate": 0.5}).to_json()
    '{"Dropout": {"rate": 0.5}}'
    """

    def __repr__(self) -> str:
        calls = []
        for layer, arguments in self.items():
            shown = ", ".join(f"{key}={_text(value)}" for key, value in arguments.items())
            calls.append(f"argscope({', '.join(filter(None, [layer, shown]))})")
        return ", ".join(calls) or "argscope()"

    def to_json(self) -> str:
        return json.dumps(_plain(self))


# A context variable, so that threads that build towers at the same time do not see each other's.
_scope: contextvars.ContextVar[ArgScope | None] = contextvars.ContextVar("argscope", default=None)


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
    updated = ArgScope({name: dict(kwargs) for name, kwargs in get_arg_scope().items()})
    for layer in chosen:
        # `vars`, since a subclass of a Keras layer does not inherit its base's ability.
        modern = getattr(layer, "__dict__", {}).get("modern_arguments")
        if modern is None:
            raise TypeError(
                "argscope takes layers registered with layer_register, and functions after "
                f"enable_argscope_for_function or enable_argscope_for_module; received {layer!r}"
            )
        updated.setdefault(layer.__name__, {}).update(modern(arguments))
    token = _scope.set(updated)
    try:
        yield
    finally:
        _scope.reset(token)


def get_arg_scope() -> ArgScope:
    """The defaults in force here: {layer name: {argument: value}}."""
    return _scope.get() or ArgScope()


def _plain(value: Any) -> Any:
    """The value in types that JSON has; whatever else there is, as its text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    path = f"{named.__module__}.{named.__qualname__}"
    return path if named is value else f"<{path}>"

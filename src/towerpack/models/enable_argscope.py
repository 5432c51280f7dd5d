"""Argscope for functions and classes that are not layers: `tf.nn`, Keras layers, a user's own."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from towerpack.models.argscope import get_arg_scope


def enable_argscope_for_function(
    func: Callable[..., Any], log_shape: bool = True
) -> Callable[..., Any]:
    """The function with its default arguments taken from `argscope`.

    `log_shape` is there for old scripts: a function has no name for a row in the table of layers.

        dense = enable_argscope_for_function(my_dense)
        with argscope(dense, activation=tf.nn.relu):
            y = dense(x, 10)
    """
    del log_shape
    if not callable(func):
        raise TypeError(f"expected a function, received {func!r}")
    return _accepting(func, getattr(func, "__name__", type(func).__name__))


def enable_argscope_for_module(module: ModuleType, log_shape: bool = True) -> contextlib.ExitStack:
    """Lets `argscope` act on all public functions and classes of a module, `tf.nn` for instance.

    The module is changed for everybody in this process: for good, or until the end of a `with`
    block if it is called in one. A class (a Keras layer) takes its constructor's defaults from
    argscope, its subclasses do not.

        enable_argscope_for_module(tf.keras.layers)
        with argscope(tf.keras.layers.Dense, activation="relu"):
            x = tf.keras.layers.Dense(10)(x)
    """
    del log_shape
    undo = contextlib.ExitStack()
    for name, value in list(vars(module).items()):
        if name.startswith("_") or not callable(value) or "modern_arguments" in vars(value):
            continue
        if inspect.isclass(value):
            _enable_class(value, undo)
        elif inspect.isroutine(value):
            setattr(module, name, _accepting(value, name))
            undo.callback(setattr, module, name, value)
    return undo


def _accepting(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = _Signature(func, name)

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **signature.with_defaults(args, kwargs))

    call.__name__ = name  # TensorFlow's own names differ: `conv2d_v2`
    call.modern_arguments = signature.checked  # type: ignore[attr-defined]
    return call


def _enable_class(cls: type, undo: contextlib.ExitStack) -> None:
    original = vars(cls).get("__init__")
    if original is None:
        return
    signature = _Signature(original, cls.__name__)

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls:
            kwargs = signature.with_defaults((self, *args), kwargs)
        original(self, *args, **kwargs)

    # Keras asks for the signature in a way that does not look through wrappers.
    initialize.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    cls.__init__ = initialize  # type: ignore[misc]
    cls.modern_arguments = staticmethod(signature.checked)  # type: ignore[attr-defined]
    undo.callback(setattr, cls, "__init__", original)
    undo.callback(delattr, cls, "modern_arguments")


class _Signature:
    """The arguments of a function that argscope may give it."""

    def __init__(self, func: Callable[..., Any], name: str):
        self.name = name
        try:
            parameters = list(inspect.signature(func).parameters.values())
        except ValueError:  # of a function written in C
            parameters = []
        self.takes_any = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.known = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
        self.positional = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        for key in arguments:
            if key not in self.known and not self.takes_any:
                near = difflib.get_close_matches(key, self.known, n=2)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                raise TypeError(
                    f"{self.name} has no argument {key!r}{hint} It takes {', '.join(self.known)}"
                )
        return dict(arguments)

    def with_defaults(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = set(self.positional[: len(args)])
        scope = get_arg_scope().get(self.name, {})
        return {**{k: v for k, v in scope.items() if k not in given}, **kwargs}

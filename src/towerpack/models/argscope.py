"""Default arguments of layers and other functions within a block of code."""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any


class ArgScope(dict[str, dict[str, Any]]):
    """{layer name: {argument: value}}, with a text form that is the same in every run.

    It shows functions and objects by their dotted names and without addresses, so that the settings
    of a run can be logged and compared.

    >>> ArgScope(Dropout={"rate": 0.5, "training": None})
    argscope(Dropout, rate=0.5, training=None)
    """

    def __repr__(self) -> str:
        calls = []
        for layer, arguments in self.items():
            shown = ", ".join(f"{key}={_text(value)}" for key, value in arguments.items())
            calls.append(f"argscope({', '.join(filter(None, [layer, shown]))})")
        return ", ".join(calls) or "argscope()"


# A context variable, so that threads that build towers at the same time do not share scopes.
_scope: contextvars.ContextVar[ArgScope | None] = contextvars.ContextVar("argscope", default=None)


@contextlib.contextmanager
def argscope(layers: Callable | Sequence[Callable], **arguments: Any) -> Iterator[None]:
    """Within the block, sets default arguments of one or several layers.

    Positional arguments take precedence over keyword arguments of the call, these over the
    innermost argscope, this over outer ones, and all of them over the layer's own defaults. The
    argument names are checked on entry. Leaving the block, also by an exception, restores the
    previous defaults.

        with argscope(Conv2D, kernel_size=3, activation=tf.nn.relu):
            x = Conv2D("conv0", x, 32)
    """
    chosen: list[Any] = list(layers) if isinstance(layers, list | tuple) else [layers]
    updated = ArgScope({name: dict(kwargs) for name, kwargs in get_arg_scope().items()})
    for layer in chosen:
        # Not `getattr`, since a subclass of a Keras layer must not inherit it from its base.
        signature = getattr(layer, "__dict__", {}).get("argscope_signature")
        if signature is None:
            raise TypeError(
                "argscope takes layers registered with layer_register, and functions after "
                f"enable_argscope_for_function or enable_argscope_for_module; received {layer!r}"
            )
        signature.check(arguments)
        updated.setdefault(layer.__name__, {}).update(arguments)
    token = _scope.set(updated)
    try:
        yield
    finally:
        _scope.reset(token)


def get_arg_scope() -> ArgScope:
    """The defaults in force here: {layer name: {argument: value}}."""
    return _scope.get() or ArgScope()


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    path = f"{named.__module__}.{named.__qualname__}"
    return path if named is value else f"<{path}>"


class Signature:
    """The arguments of a function that argscope may set, without the first `skip` ones.

    Every function, layer or class that argscope accepts has one: its attribute
    `argscope_signature`.
    """

    def __init__(self, func: Callable[..., Any], name: str, skip: int = 0):
        self.name = name
        try:
            parameters = list(inspect.signature(func).parameters.values())[skip:]
            self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        except ValueError:  # a function written in C
            parameters, self.takes_any = [], True
        self.positional = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.known = [p.name for p in named]
        self.required = [p.name for p in named if p.default is p.empty]

    def check(self, arguments: Iterable[str]) -> None:
        """Raises an error if the function does not take one of these arguments."""
        for name in arguments:
            if name not in self.known and not self.takes_any:
                raise TypeError(
                    f"{self.name} has no argument {name!r}{did_you_mean(name, self.known, 2)} It "
                    f"takes {', '.join(self.known) or 'none'}"
                )

    def with_defaults(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a call, with those that argscope adds."""
        given = set(self.positional[: len(args)])
        scope = get_arg_scope().get(self.name, {})
        return {**{k: v for k, v in scope.items() if k not in given}, **kwargs}


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
    """The end of a sentence about a wrong name: the most similar names, or a full stop.

    >>> did_you_mean("filter", ["filters", "strides"])
    '; did you mean filters?'
    """
    near = difflib.get_close_matches(name, list(known), n=count)
    return f"; did you mean {' or '.join(near)}?" if near else "."


def enable_argscope_for_function(func: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with its default arguments taken from `argscope`.

    dense = enable_argscope_for_function(my_dense)
    with argscope(dense, activation=tf.nn.relu):
        y = dense(x, 10)
    """
    if not callable(func):
        raise TypeError(f"expected a function, received {func!r}")
    return _enabled(func, getattr(func, "__name__", type(func).__name__))


def enable_argscope_for_module(module: ModuleType) -> contextlib.ExitStack:
    """Lets `argscope` act on all public functions and classes of a module, such as `tf.nn`.

    This changes the module for the whole process: until the end of the block if it is called in a
    `with` statement, otherwise permanently. A class, such as a Keras layer, takes the defaults of
    its constructor from argscope. Its subclasses do not.

        enable_argscope_for_module(tf.keras.layers)
        with argscope(tf.keras.layers.Dense, activation="relu"):
            x = tf.keras.layers.Dense(10)(x)
    """
    undo = contextlib.ExitStack()
    for name, value in list(vars(module).items()):
        if name.startswith("_") or not callable(value) or "argscope_signature" in vars(value):
            continue
        if inspect.isclass(value):
            _enable_class(value, undo)
        elif inspect.isroutine(value):
            setattr(module, name, _enabled(value, name))
            undo.callback(setattr, module, name, value)
    return undo


def _enabled(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = Signature(func, name)

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **signature.with_defaults(args, kwargs))

    call.__name__ = name  # TensorFlow's own names differ: `conv2d_v2`
    call.argscope_signature = signature  # type: ignore[attr-defined]
    return call


def _enable_class(cls: type, undo: contextlib.ExitStack) -> None:
    original = vars(cls).get("__init__")
    if original is None:
        return
    signature = Signature(original, cls.__name__)

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls:
            kwargs = signature.with_defaults((self, *args), kwargs)
        original(self, *args, **kwargs)

    # Keras reads the signature in a way that does not follow `__wrapped__`.
    initialize.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    cls.__init__ = initialize  # type: ignore[misc]
    cls.argscope_signature = signature  # type: ignore[attr-defined]
    undo.callback(setattr, cls, "__init__", original)
    undo.callback(delattr, cls, "argscope_signature")

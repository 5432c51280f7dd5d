"""Default arguments of layers and other functions within a block of code."""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any


class ArgScope(dict[str, dict[str, Any]]):
    """{layer name: {argument: value}}, with a text form that is the same in every run.

    `repr` and `to_json` show functions and objects by their dotted names, never by an address, so
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


# A context variable, so that threads that build towers at the same time do not share scopes.
_scope: contextvars.ContextVar[ArgScope | None] = contextvars.ContextVar("argscope", default=None)


@contextlib.contextmanager
def argscope(layers: Callable | Sequence[Callable], **arguments: Any) -> Iterator[None]:
    """Within the block, sets default arguments of one or several layers.

    Positional arguments win over keyword arguments of the call, those over the innermost argscope,
    that over outer ones, and all of them over the layer's own defaults. The argument names are
    checked on entry. Leaving the block, also by an exception, restores the previous defaults.

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
        updated.setdefault(layer.__name__, {}).update(signature.checked(arguments))
    token = _scope.set(updated)
    try:
        yield
    finally:
        _scope.reset(token)


def get_arg_scope() -> ArgScope:
    """The defaults in force here: {layer name: {argument: value}}."""
    return _scope.get() or ArgScope()


def _plain(value: Any) -> Any:
    """The value as JSON types; anything else as its text."""
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


class Signature:
    """The arguments of a function that argscope may set, without the first `skip` ones.

    A function, layer or class that argscope accepts has one as its attribute `argscope_signature`.
    """

    def __init__(self, func: Callable[..., Any], name: str, skip: int = 0):
        self.name = name
        self.renamed: dict[str, str] = {}
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

    def rename(self, renamed: Mapping[str, str]) -> None:
        """Accepts other names of arguments, {old: new}."""
        wrong = {old: new for old, new in renamed.items() if new not in self.known}
        if wrong and not self.takes_any:
            raise ValueError(f"{self.name}: `renamed` leads to arguments it does not have: {wrong}")
        self.renamed.update(renamed)

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments under their new names; an error if the function does not take one."""
        result: dict[str, Any] = {}
        for key, value in arguments.items():
            if key not in self.known and key not in self.renamed and not self.takes_any:
                hint = did_you_mean(key, [*self.known, *self.renamed], 2)
                raise TypeError(
                    f"{self.name} has no argument {key!r}{hint} It takes {', '.join(self.known)}"
                )
            new = self.renamed.get(key, key)
            if new in result:
                given = [repr(name) for name in arguments if self.renamed.get(name, name) == new]
                raise TypeError(
                    f"{self.name}: {' and '.join(given)} are the same argument, give one"
                )
            result[new] = value
        return result

    def with_defaults(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a call, with those that argscope adds."""
        given = set(self.positional[: len(args)])
        scope = get_arg_scope().get(self.name, {})
        return {**{k: v for k, v in scope.items() if k not in given}, **kwargs}


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
    """The end of an error message with the most similar names, or an empty string.

    >>> did_you_mean("filter", ["filters", "strides"])
    '; did you mean filters?'
    """
    near = difflib.get_close_matches(name, list(known), n=count)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def enable_argscope_for_function(
    func: Callable[..., Any], log_shape: bool = True
) -> Callable[..., Any]:
    """Returns the function with its default arguments taken from `argscope`.

    `log_shape` has no effect: a function has no name for a row in the table of layers. Old scripts
    pass it.

        dense = enable_argscope_for_function(my_dense)
        with argscope(dense, activation=tf.nn.relu):
            y = dense(x, 10)
    """
    del log_shape
    if not callable(func):
        raise TypeError(f"expected a function, received {func!r}")
    return _enabled(func, getattr(func, "__name__", type(func).__name__))


def enable_argscope_for_module(module: ModuleType, log_shape: bool = True) -> contextlib.ExitStack:
    """Lets `argscope` act on all public functions and classes of a module, such as `tf.nn`.

    This changes the module for the whole process: until the end of the block if the call is the
    subject of a `with` statement, else for good. A class (a Keras layer) takes the defaults of its
    constructor from argscope; its subclasses do not.

        enable_argscope_for_module(tf.keras.layers)
        with argscope(tf.keras.layers.Dense, activation="relu"):
            x = tf.keras.layers.Dense(10)(x)
    """
    del log_shape
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

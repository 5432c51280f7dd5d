"""What makes a function a layer: a name, a variable scope, argscope, and a row in the table."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.argscope import Signature, get_arg_scope
from towerpack.tower import get_current_tower_context
from towerpack.tower.layer_calls import shape_text
from towerpack.tower.precision import in_layer_precision

# A name has several layers if two modules of a user chose the same name.
_layers: dict[str, list[Callable[..., Any]]] = {}
RESERVED = "tf"  # LinearWrap(x).tf.<function> reaches TensorFlow
_OWN = f"{__name__.rpartition('.')[0]}."


def layer_register(
    log_shape: bool = False, use_scope: bool | None = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes `func(x, ...)` a layer `layer(name, x, ...)` with its own variable scope.

    With `use_scope=None` the name is optional, with False the layer takes none. `log_shape` gives
    the layer a row in the table of layers. A layer of a script takes precedence over a layer of
    towerpack with the same name.

        @layer_register(log_shape=True)
        def Scale(x, *, init=1.0):
            return x * tf.compat.v1.get_variable("k", initializer=init)

        Scale("scale0", x)
    """

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        if func.__name__ == RESERVED:
            raise ValueError(f"a layer cannot be named {RESERVED!r}, which LinearWrap uses")
        layer = _Layer(func, log_shape, use_scope)

        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            return layer(*args, **kwargs)

        call.argscope_signature = layer.signature  # type: ignore[attr-defined]
        call.in_open_scope = layer.in_open_scope  # type: ignore[attr-defined]
        # Replaces a layer of the same module (a cell of a notebook ran again), and towerpack's own.
        _layers[func.__name__] = [
            *(
                other
                for other in _layers.get(func.__name__, [])
                if other.__module__ != func.__module__ and not other.__module__.startswith(_OWN)
            ),
            call,
        ]
        return call

    return decorate


def layer_named(
    name: str, doc: str, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`layer_register(**options)` for a function made by a factory: sets its name and docstring."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        func.__name__ = func.__qualname__ = name
        func.__doc__ = doc
        return layer_register(**options)(func)

    return decorate


def get_registered_layer(name: str) -> Callable[..., Any] | None:
    """The layer with that name, or None. Raises an error if two modules registered the name."""
    found = _layers.get(name, [])
    if len(found) > 1:
        modules = [layer.__module__ for layer in found]
        raise ValueError(
            f"the layer {name!r} is registered by several modules, {modules}; rename one of them"
        )
    return found[0] if found else None


def layer_names() -> list[str]:
    return list(_layers)


class _Layer:
    def __init__(self, func: Callable[..., Any], log_shape: bool, use_scope: bool | None):
        self.func, self.log_shape, self.use_scope = func, log_shape, use_scope
        self.name = func.__name__
        self.signature = Signature(func, self.name, skip=1)  # without the input

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, x, rest = self._split(args)
        if name is None:
            return self.in_open_scope(x, *rest, **kwargs)
        context = get_current_tower_context()
        recorded = context.layer_calls.call(self.name, x) if context and self.log_shape else None
        with recorded or contextlib.nullcontext() as record, v1.variable_scope(name):
            try:
                output = self.in_open_scope(x, *rest, **kwargs)
            except Exception as error:
                error.add_note(f"in layer {self.name}({name!r}) on input {shape_text(x)}")
                raise
            result = _named_output(output)
            if record is not None:
                record.complete(v1.get_variable_scope().name, result)
        return result

    def in_open_scope(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer without its own scope: its variables are created in the open scope."""
        names = self.signature.positional
        if len(args) > len(names):
            raise TypeError(
                f"{self.name} takes at most {len(names)} positional arguments after its input "
                f"{names}, received {len(args)}; pass the others by name"
            )
        self.signature.check(kwargs)
        by_position = dict(zip(names, args, strict=False))
        arguments = {**get_arg_scope().get(self.name, {}), **kwargs, **by_position}
        missing = [name for name in self.signature.required if name not in arguments]
        if missing:
            raise TypeError(
                f"{self.name} needs {' and '.join(missing)}; pass it in the call, or for many "
                f"layers at once in argscope({self.name}, {missing[0]}=...)"
            )
        if self.func.__module__.startswith(_OWN):
            return in_layer_precision(self.func, x, arguments)
        return self.func(x, **arguments)

    def _split(self, args: tuple[Any, ...]) -> tuple[str | None, Any, tuple[Any, ...]]:
        """The name (if there is one), the input, and the other positional arguments."""
        name = None
        received = repr(args[0]) if args else "nothing"
        if self.use_scope is not False and args and isinstance(args[0], str):
            name, args = args[0], args[1:]
        if name is None and self.use_scope is True:
            raise TypeError(
                f"{self.name} needs a name first, {self.name}('name', x, ...); received {received}"
            )
        if name == "":
            raise ValueError(f"{self.name} needs a name that is not empty")
        if not args or not _is_tensor_like(args[0]):
            received = repr(args[0]) if args else "nothing"
            raise TypeError(f"{self.name} needs a tensor or a list of tensors, received {received}")
        return name, args[0], args[1:]


def _named_output(output: Any) -> Any:
    """The layer's output under the name `<layer>/output`, with its variables."""
    if isinstance(output, tuple):
        return tuple(map(_named_output, output))
    if not tf.is_tensor(output):
        return output
    variables = getattr(output, "variables", None)
    named = tf.identity(output, name="output")
    if variables is not None:
        named.variables = variables
    return named


def _is_tensor_like(x: Any) -> bool:
    if isinstance(x, list | tuple):
        return bool(x) and all(_is_tensor_like(item) for item in x)
    return tf.is_tensor(x) or isinstance(x, tf.Variable)

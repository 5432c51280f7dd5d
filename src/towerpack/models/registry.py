"""What makes a function a layer: a name, a variable scope, argscope, and a row in the table."""

from __future__ import annotations

import contextvars
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.argscope import get_arg_scope
from towerpack.tower import get_current_tower_context
from towerpack.tower.layer_calls import LayerCall, shape_text
from towerpack.tower.precision import in_layer_precision

# Several under one name where two modules of a user chose the same.
_layers: dict[str, list[Callable[..., Any]]] = {}
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("layer_depth", default=0)
RESERVED = "tf"  # LinearWrap(x).tf.<function> reaches TensorFlow
_OWN = __name__.rpartition(".")[0]


class VariableHolder:
    """The variables of a layer's output, by their short names: `layer.variables.W`."""

    def __init__(self, **variables: Any):
        self.__dict__.update(variables)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the layer has no variable {name!r}; it has {list(self.__dict__)}")

    def all(self) -> list[Any]:
        return list(self.__dict__.values())


def layer_register(
    log_shape: bool = False,
    use_scope: bool | None = True,
    renamed: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes `func(x, ...)` a layer `layer(name, x, ...)` with its own variable scope.

    `use_scope=None` makes the name optional, False leaves it out. `renamed` maps old argument names
    to new ones. `log_shape` gives the layer a row in the table of layers. A script's own layer
    stands before one of towerpack's with the same name.

        @layer_register(log_shape=True)
        def Scale(x, *, init=1.0):
            return x * tf.compat.v1.get_variable("k", initializer=init)

        Scale("scale0", x)
    """

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        if func.__name__ == RESERVED:
            raise ValueError(f"a layer cannot be named {RESERVED!r}: LinearWrap uses it")
        layer = _Layer(func, log_shape, use_scope, dict(renamed or {}))

        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            return layer(*args, **kwargs)

        call.modern_arguments = layer.modern_arguments  # type: ignore[attr-defined]
        call.in_open_scope = layer.in_open_scope  # type: ignore[attr-defined]
        call.use_scope = use_scope  # type: ignore[attr-defined]
        call.symbolic_function = func  # type: ignore[attr-defined]
        _register(call)
        return call

    return decorate


def _register(layer: Callable[..., Any]) -> None:
    """A notebook's cell that runs again replaces its layer; a user's replaces towerpack's."""
    others = _layers.get(layer.__name__, [])
    kept = [
        other
        for other in others
        if other.__module__ != layer.__module__ and not other.__module__.startswith(f"{_OWN}.")
    ]
    _layers[layer.__name__] = [*kept, layer]


def register_alias(name: str, layer: Callable[..., Any]) -> Callable[..., Any]:
    """A second name of a layer in chains; argscope and the table know it by its first."""
    _layers[name] = [layer]
    return layer


def get_registered_layer(name: str) -> Callable[..., Any] | None:
    """The layer of that name, None if there is none; an error if two modules registered it."""
    found = _layers.get(name, [])
    if len(found) > 1:
        homes = [layer.__module__ for layer in found]
        raise ValueError(f"the layer {name!r} is registered by several modules, {homes}; rename it")
    return found[0] if found else None


def layer_names() -> list[str]:
    return list(_layers)


class _Layer:
    def __init__(
        self, func: Callable[..., Any], log_shape: bool, use_scope: bool | None, renamed: dict
    ):
        self.func, self.log_shape = func, log_shape
        self.use_scope, self.renamed = use_scope, renamed
        self.name = func.__name__
        self.is_own = func.__module__.startswith(f"{_OWN}.")
        parameters = list(inspect.signature(func).parameters.values())
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters[1:] if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        self.known = [p.name for p in named]
        self.positional = [p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.required = [p.name for p in named if p.default is p.empty]
        nowhere = {old: new for old, new in renamed.items() if new not in self.known}
        if nowhere and not self.takes_any:
            raise ValueError(f"{self.name}: `renamed` leads to arguments it has not: {nowhere}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, x, rest = self._split(args)
        if name is None:
            return self.in_open_scope(x, *rest, **kwargs)
        with v1.variable_scope(name):
            token = _depth.set(_depth.get() + 1)
            try:
                output = self.in_open_scope(x, *rest, **kwargs)
            except Exception as error:
                error.add_note(f"in layer {self.name}({name!r}) on input {shape_text(x)}")
                raise
            finally:
                _depth.reset(token)
            result = _named_output(output)
            path = v1.get_variable_scope().name
        self._record(path, x, result)
        return result

    def in_open_scope(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """The layer without a scope of its own: its variables in the one that is open."""
        arguments = self._merge(args, kwargs)
        if self.is_own:
            return in_layer_precision(self.func, x, arguments)
        return self.func(x, **arguments)

    def _split(self, args: tuple[Any, ...]) -> tuple[str | None, Any, tuple[Any, ...]]:
        args_left = args
        name = None
        if self.use_scope is not False and args and isinstance(args[0], str):
            name, args_left = args[0], args[1:]
        if name is None and self.use_scope is True:
            received = repr(args[0]) if args else "nothing"
            raise TypeError(
                f"{self.name} needs a name first, {self.name}('name', x, ...); received {received}"
            )
        if name == "":
            raise ValueError(f"{self.name} needs a name that is not empty")
        if not args_left or not _is_tensor_like(args_left[0]):
            received = repr(args_left[0]) if args_left else "nothing"
            raise TypeError(f"{self.name} needs a tensor or a list of tensors, received {received}")
        return name, args_left[0], args_left[1:]

    def _merge(self, positional: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(positional) > len(self.positional):
            raise TypeError(
                f"{self.name} takes at most {len(self.positional)} positional arguments after its "
                f"input {self.positional}, received {len(positional)}; name the others"
            )
        by_position = dict(zip(self.positional, positional, strict=False))
        called = {**self.modern_arguments(kwargs), **by_position}
        merged = {**get_arg_scope().get(self.name, {}), **called}
        missing = [name for name in self.required if name not in merged]
        if missing:
            raise TypeError(
                f"{self.name} needs {' and '.join(missing)}; give it in the call, or for many "
                f"layers at once in argscope({self.name}, {missing[0]}=...)"
            )
        return merged

    def modern_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Checked, with the old argument names replaced by the new ones."""
        self._check(arguments)
        modern: dict[str, Any] = {}
        for key, value in arguments.items():
            new = self.renamed.get(key, key)
            if new in modern:
                raise TypeError(f"{self.name}: {key!r} and {new!r} are the same argument, give one")
            modern[new] = value
        return modern

    def _check(self, arguments: Mapping[str, Any]) -> None:
        allowed = [*self.known, *self.renamed]
        for key in arguments:
            if key not in allowed and not self.takes_any:
                near = difflib.get_close_matches(key, allowed, n=2)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                raise TypeError(
                    f"{self.name} has no argument {key!r}{hint} It takes {', '.join(self.known)}"
                )

    def _record(self, path: str, x: Any, output: Any) -> None:
        context = get_current_tower_context()
        # Once for each model and not again for each trace: the first training tower says it.
        if self.log_shape and _depth.get() == 0 and context and context.is_main_training_tower:
            call = LayerCall(self.name, shape_text(x), shape_text(output))
            context.store.layers.setdefault(path, call)


def _named_output(output: Any) -> Any:
    """The layer's output under the name `<layer>/output`, its variables kept."""
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

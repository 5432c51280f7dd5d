"""The settings of a run: a dataclass with values from TOML or JSON files and `key=value` texts.

Fields may have any type of plain data: numbers, text, bool, None, `Path`, enums, `Literal`, lists,
tuples, dicts, unions of those, and further dataclasses, whose keys are written with dots.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import enum
import functools
import inspect
import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from towerpack.core.similar import nearest_first

__all__ = ["read_settings"]

Settings = TypeVar("Settings")
NOT_FINITE = ("inf", "-inf", "nan")  # JSON has no such numbers, so a run's record has these texts
REQUIRED = dataclasses.MISSING


class SettingsError(ValueError):
    """A key that does not exist, a value of another type, or a value that is missing."""


class _Text(str):
    """A value of a `key=value` text, whose type follows from the field."""


class _Nested(dict):
    """Values of a nested dataclass by field. A field of type dict has a plain dict."""


def read_settings(
    settings: Settings | type[Settings],
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> Settings:
    """A copy of `settings` with the values of a TOML or JSON file, then those of `overrides`.

    `settings` is a dataclass, or an instance whose values are the defaults. Every key and every
    value is checked: an unknown key is an error that begins with the nearest one, and so is a value
    of another type. In an override, the type of the field decides how the text is read: `name=12`
    is the text '12' in a field of type str, and a list is written as `units=[64,32]`. `none` means
    None where the field allows it. If a key appears twice, the last value counts.

    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class Training:
    ...     lr: float = 0.1
    ...     units: tuple[int, ...] = (64, 32)
    >>> read_settings(Training, overrides=["units=[8]", "lr=1e-3"])
    Training(lr=0.001, units=(8,))
    >>> read_settings(Training, overrides=["lrr=1"])
    Traceback (most recent call last):
    towerpack.core.settings.SettingsError: expected a known key in 'lrr=1', received 'lrr'; the
    nearest are 'lr', 'units'
    """
    changed = _Nested()
    if file is not None:
        _merge(changed, _checked(_class_of(settings), _read(Path(file)), str(file)))
    for text in overrides:
        _merge(changed, _checked(_class_of(settings), _tree(text), repr(text)))
    return _made(settings, changed)


def updated_settings(
    settings: Settings | type[Settings], values: Mapping[str, Any], origin: str
) -> Settings:
    """A copy of `settings` with `values`, which are nested; errors name their `origin`."""
    return _made(settings, _checked(_class_of(settings), values, origin))


def list_keys(settings: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """The dotted key, type and default of every setting; the default is `REQUIRED` without one."""
    for field, hint in _fields(_class_of(settings)).values():
        default = _value_of(settings, field)
        nested = _dataclass_in(hint)
        if nested is not None and default is not None:
            inner = nested if default is REQUIRED else default
            yield from list_keys(inner, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", type_name(hint), default


def settings_of_function(function: Callable[..., Any]) -> type:
    """A dataclass with a field for each parameter; one without a hint has its default's type.

    >>> settings_of_function(lambda units=32, *, name="net": 0)()
    Settings(units=32, name='net')
    """
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"expected parameters with names, received {parameter} of {function}")
        if default is parameter.empty:
            fields.append((name, hints.get(name, Any)))
            continue
        hint = hints.get(name, Any if default is None else type(default))
        # A dataclass refuses a list as a default, unless it is made for each instance.
        made = functools.partial(copy.deepcopy, default)
        fields.append((name, hint, dataclasses.field(default_factory=made)))
    return dataclasses.make_dataclass("Settings", fields, kw_only=True)


def type_name(hint: Any) -> str:
    """A type as a user writes it.

    >>> type_name(float | None), type_name(typing.Literal["adam", "sgd"])
    ('float | None', "'adam' or 'sgd'")
    """
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(repr(member.value) for member in hint)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) is typing.Annotated:
        kind, *limits = typing.get_args(hint)
        return f"{type_name(kind)} with {', '.join(map(str, limits))}".replace("msgspec.", "")
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(type_name(part) for part in typing.get_args(hint))
    if hint in (types.NoneType, Ellipsis):
        return "None" if hint is types.NoneType else "..."
    name = getattr(typing.get_origin(hint) or hint, "__name__", str(hint))
    parts = ", ".join(type_name(part) for part in typing.get_args(hint))
    return f"{name}[{parts}]" if parts else name


def _class_of(settings: Any) -> type:
    kind = settings if isinstance(settings, type) else type(settings)
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"expected a dataclass or an instance of one, received {settings!r}")
    return kind


def _fields(kind: type) -> dict[str, tuple[Any, Any]]:
    """Each field that can be set, with its type."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    return {field.name: (field, hints[field.name]) for field in fields if field.init}


def _value_of(settings: Any, field: Any) -> Any:
    """The present value of a field, or the default if `settings` is a class."""
    if not isinstance(settings, type):
        return getattr(settings, field.name)
    return field.default if field.default_factory is REQUIRED else field.default_factory()


def _dataclass_in(hint: Any) -> type | None:
    """The type itself if it is a dataclass, or the only one in a union such as `Augment | None`."""
    found = [part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part)]
    in_union = typing.get_origin(hint) in (None, typing.Union, types.UnionType, typing.Annotated)
    return typing.cast(type, found[0]) if in_union and len(found) == 1 else None


def _read(path: Path) -> dict[str, Any]:
    readers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}
    if path.suffix not in readers:
        raise SettingsError(f"expected a file of settings, .toml or .json, received {path}")
    try:
        values = readers[path.suffix](path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected an object of keys and values, received {values!r}")
    return values


def _tree(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"expected KEY=VALUE, such as lr=0.1, received {text!r}")
    tree: Any = _Text(value.strip())
    for part in reversed(key.strip().split(".")):
        tree = {part: tree}
    return tree


def _checked(kind: type, tree: Mapping[str, Any], origin: str, path: str = "") -> _Nested:
    """The values of a tree with the types of the fields."""
    fields, found = _fields(kind), _Nested()
    for key, value in tree.items():
        if key not in fields:
            raise _unknown(f"{path}{key}", [f"{path}{name}" for name in fields], origin)
        hint = fields[key][1]
        nested = _dataclass_in(hint)
        if nested is not None and isinstance(value, _Text):
            value = _parsed(value)
        if nested is not None and isinstance(value, Mapping):
            found[key] = _checked(nested, value, origin, f"{path}{key}.")
        else:
            found[key] = _converted(value, hint, f"{path}{key}", origin)
    return found


def _unknown(key: str, known: Sequence[str], origin: str) -> SettingsError:
    nearest = f"the nearest are {nearest_first(key, known)}" if known else "there are no keys"
    return SettingsError(f"expected a known key in {origin}, received {key!r}; {nearest}")


def _converted(value: Any, hint: Any, key: str, origin: str) -> Any:
    failure: Exception | None = None
    attempts = [(value, value not in NOT_FINITE if isinstance(value, str) else True)]
    if isinstance(value, _Text):  # the raw text comes last: it fits every field of type str
        attempts = [(_parsed(value), True), (str(value), False)]
    for candidate, strict in attempts:
        try:
            found = msgspec.convert(candidate, hint, strict=strict, dec_hook=_decode)
        except (msgspec.ValidationError, TypeError) as error:
            failure = failure or error
            continue
        _check_keys(candidate, found, key, origin)
        return found
    reason, _, place = str(failure).partition(" - at ")  # within a list or dict
    nested = _dataclass_in(hint)
    keys = ", ".join(f"{key}.{name}" for name in _fields(nested)) if nested else ""
    raise SettingsError(
        f"{key}: expected {type_name(hint)}, received {value!r}"
        + (f"; at {place.strip('`').removeprefix('$')}: {reason}" if place else "")
        + ("" if origin.startswith(("'", '"')) else f" in {origin}")
        + (f"; its keys are {keys}" if keys else "")
    ) from failure


def _parsed(text: str) -> Any:
    """The text as JSON or as a literal of Python; the text itself if it is neither."""
    if text == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass  # not JSON
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return str(text)


def _check_keys(given: Any, found: Any, key: str, origin: str) -> None:
    """Raises if msgspec has ignored a key of a dataclass within a list or dict."""
    if dataclasses.is_dataclass(found) and isinstance(given, Mapping):
        fields = _fields(type(found))
        for name, value in given.items():
            if name not in fields:
                raise _unknown(f"{key}.{name}", [f"{key}.{field}" for field in fields], origin)
            _check_keys(value, getattr(found, name), f"{key}.{name}", origin)
    elif isinstance(found, list | tuple):
        for place, (value, made) in enumerate(zip(given, found, strict=True)):
            _check_keys(value, made, f"{key}[{place}]", origin)
    elif isinstance(found, dict):
        for (name, value), made in zip(given.items(), found.values(), strict=True):
            _check_keys(value, made, f"{key}.{name}", origin)


def _merge(into: _Nested, later: _Nested) -> None:
    for key, value in later.items():
        if isinstance(value, _Nested) and isinstance(into.get(key), _Nested):
            _merge(into[key], value)
        else:
            into[key] = value


def _made(settings: Any, values: _Nested, path: str = "") -> Any:
    """A new instance; nested dataclasses keep the defaults of the field that they are in."""
    kind, arguments = _class_of(settings), {}
    for name, (field, hint) in _fields(kind).items():
        value = default = _value_of(settings, field)
        if name in values:
            value = values[name]
            if isinstance(value, _Nested):
                base = default if dataclasses.is_dataclass(default) else _dataclass_in(hint)
                value = _made(base, value, f"{path}{name}.")
        if value is REQUIRED:
            raise SettingsError(
                f"expected a value of {path}{name} ({type_name(hint)}), which has no default"
            )
        arguments[name] = value
    made = kind(**arguments)
    # Stored settings are made again when a run is resumed.
    arguments = {name: getattr(made, name) for name in arguments}
    again = kind(**arguments)
    for name, value in arguments.items():
        if getattr(again, name) is not value and getattr(again, name) != value:
            raise TypeError(
                f"expected {kind.__name__} to keep {name}={value!r} when it is made from its own "
                f"values, received {getattr(again, name)!r}; __post_init__ may check and complete "
                "values: what is derived from them is a property"
            )
    return made


def _decode(kind: type, value: Any) -> Any:
    if issubclass(kind, Path) and isinstance(value, str):
        return kind(value)
    raise TypeError(f"expected {kind.__name__}, received {value!r}")

"""Settings as plain data: as a run stores them, as texts, and compared between runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

ABSENT = object()


def plain_settings(settings: Any, path: str = "") -> dict[str, Any]:
    """The values of a dataclass as plain data, from which `updated_settings` makes an equal one."""
    found = {}
    for field in (field for field in dataclasses.fields(settings) if field.init):
        value, key = getattr(settings, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            found[field.name] = plain_settings(value, f"{key}.")
            continue
        try:
            found[field.name] = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
        except TypeError as error:
            raise TypeError(
                f"{key}: expected plain data (numbers, text, lists, dicts, paths, enums, "
                f"dataclasses), since settings are stored with the run, received {value!r}"
            ) from error
    return found


def flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested values by their dotted keys.

    >>> flat({"optimizer": {"name": "adam", "lr": 0.1}, "seed": 0})
    {'optimizer.name': 'adam', 'optimizer.lr': 0.1, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {}
        found |= inner or {f"{path}{key}": value}
    return found


def as_overrides(values: Mapping[str, Any]) -> list[str]:
    """Plain nested values as texts of the command line, for people to read.

    >>> as_overrides({"optimizer": {"name": "adam", "lr": 0.1}, "units": [64, 32], "clip": None})
    ['optimizer.name=adam', 'optimizer.lr=0.1', 'units=[64,32]', 'clip=none']
    """
    return [f"{key}={text_of(value)}" for key, value in flat(values).items()]


def text_of(value: Any) -> str:
    """A value as a text of the command line."""
    value = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
    if value is None or isinstance(value, str):
        return "none" if value is None else value
    return json.dumps(value, separators=(",", ":"))


def differing_keys(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of some flat dicts; a missing key differs.

    >>> differing_keys([{"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0, "clip": None}])
    ['lr', 'clip']
    """
    keys = dict.fromkeys(key for run in runs for key in run)
    return [
        key for key in keys if any(run.get(key, ABSENT) != runs[0].get(key, ABSENT) for run in runs)
    ]


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not plain data")

"""Keyword arguments by the names that old scripts use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def renamed(target: F, **new_name_of: str) -> F:
    """A function or class that also accepts keyword arguments by their former names.

    A class becomes a subclass, so `isinstance` and deriving from it still work.

    >>> def start(num_proc):
    ...     return num_proc
    >>> renamed(start, nr_proc="num_proc")(nr_proc=2)
    2
    """

    def translated(kwargs: dict[str, Any]) -> dict[str, Any]:
        for old, new in new_name_of.items():
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{new} was given twice, also by its former name {old}")
                kwargs[new] = kwargs.pop(old)
        return kwargs

    if not isinstance(target, type):

        @functools.wraps(target)
        def function(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **translated(kwargs))

        return function  # type: ignore[return-value]

    inherited: Any = target.__init__  # type: ignore[misc]

    @functools.wraps(inherited)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        inherited(self, *args, **translated(kwargs))

    body = {"__init__": __init__, "__doc__": target.__doc__, "__qualname__": target.__qualname__}
    return type(target)(target.__name__, (target,), {**body, "__module__": target.__module__})

"""Keyword arguments by the names that old scripts use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def old_names(**new_name_of: str) -> Callable[[F], F]:
    """Lets a function also accept keyword arguments by their former names.

    >>> @old_names(nr_proc="num_proc")
    ... def start(num_proc):
    ...     return num_proc
    >>> start(nr_proc=2)
    2
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for old, new in new_name_of.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{new} was given twice, also by its former name {old}")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate

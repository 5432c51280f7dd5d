"""Decorators and contexts for scopes of variables and of names."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.creation import current_scope


def auto_reuse_variable_scope(func: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a function be called several times in a tower with the same variables.

    The first call under a variable scope creates them, and further calls there find them. Another
    scope has other variables. The usual case is a discriminator of real and generated images.

        @auto_reuse_variable_scope
        def discriminator(x):
            return FullyConnected("fc", x, 1)
    """

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = v1.get_variable_scope()
        first = current_scope().first_call((func, scope.name))
        with v1.variable_scope(scope, reuse=scope.reuse if first else True):
            return func(*args, **kwargs)

    return call


def under_name_scope(name_scope: str | None = None) -> Callable[..., Any]:
    """Runs a function under a name scope, which by default has the name of the function."""
    return _under(lambda func: tf.name_scope(name_scope or func.__name__))


def under_variable_scope() -> Callable[..., Any]:
    """Runs a function under a variable scope with the name of the function."""
    return _under(lambda func: v1.variable_scope(func.__name__))


def _under(scope_of: Callable[[Callable[..., Any]], Any]) -> Callable[..., Any]:
    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            with scope_of(func):
                return func(*args, **kwargs)

        return call

    return decorate


@contextlib.contextmanager
def cached_name_scope(name: str, top_level: bool = True) -> Iterator[str]:
    """A name scope with the same name each time it is opened; TensorFlow would number it.

    With `top_level` it is at the top of the graph, whatever scopes are open; otherwise it is inside
    them.
    """
    outer = "" if top_level else tf.get_current_name_scope()
    path = "/".join(filter(None, [outer, name]))
    with tf.name_scope(f"{path}/") as scope:
        yield scope

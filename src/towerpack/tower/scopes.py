"""Decorators and contexts for scopes of variables and of names."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.store import VariableStore


def auto_reuse_variable_scope(func: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a function be called several times in a tower with the same variables.

    The first call under a variable scope makes them, further calls there find them; under another
    scope they are others. A discriminator that sees real and generated images is the usual case.

        @auto_reuse_variable_scope
        def discriminator(x):
            return FullyConnected("fc", x, 1)
    """

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = v1.get_variable_scope()
        first = VariableStore.current().first_visit((func, scope.name))
        with v1.variable_scope(scope, reuse=scope.reuse if first else True):
            return func(*args, **kwargs)

    return call


def under_name_scope(name_scope: str | None = None) -> Callable[..., Any]:
    """Runs a function under a name scope, by default of its own name."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            with tf.name_scope(name_scope or func.__name__):
                return func(*args, **kwargs)

        return call

    return decorate


def under_variable_scope() -> Callable[..., Any]:
    """Runs a function under a variable scope of its own name."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            with v1.variable_scope(func.__name__):
                return func(*args, **kwargs)

        return call

    return decorate


@contextlib.contextmanager
def cached_name_scope(name: str, top_level: bool = True) -> Iterator[str]:
    """A name scope that is the same each time it is opened, where TensorFlow would number it.

    With `top_level` it stands at the top of the graph, whatever scopes are open; otherwise it
    stands inside them.
    """
    outer = "" if top_level else tf.get_current_name_scope()
    path = "/".join(filter(None, [outer, name]))
    with tf.name_scope(f"{path}/") as scope:
        yield scope

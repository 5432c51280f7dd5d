"""Importing optional and large libraries."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def require(module: str, extra: str) -> ModuleType:
    """Imports the module; if it is missing, the ImportError names the extra to install.

    >>> require("json", extra="none").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # If the module exists and one of its own imports failed, its own error is more useful.
        if error.name and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(
            f"this needs the package {module.split('.')[0]!r}, which is not installed; "
            f"run: pip install 'towerpack[{extra}]'",
            name=error.name,
        ) from error


class Lazy:
    """A name of a module that is imported when the name is first used.

    >>> encoder = Lazy("json", "encoder", extra="none")
    >>> encoder.JSONEncoder().encode([1])
    '[1]'
    """

    def __init__(self, module: str, name: str, extra: str):
        self._place = module, name, extra

    def __getattr__(self, attribute: str) -> Any:
        module, name, extra = self._place
        return getattr(getattr(require(module, extra), name), attribute)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switches the garbage collector off for a block that makes many lasting objects.

    Afterwards, the collector is as it was before. It treats the new objects as old ones, so its
    next run need not examine them all. Reference counting is not affected. Other threads have no
    garbage collection in the meantime either.

    >>> with without_garbage_collection():
    ...     gc.isenabled()
    False
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Together they make all objects old, by moving whole lists. Objects that the user has
        # frozen must stay frozen.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()

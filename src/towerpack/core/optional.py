"""Optional dependencies, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def require(module: str, extra: str) -> ModuleType:
    """The module, or an ImportError that names the extra to install.

    >>> require("json", extra="none").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # The module may be there and fail on something of its own: then its own words are better.
        if error.name and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(
            f"this needs the package {module.split('.')[0]!r}, which is not installed; "
            f"run: pip install 'towerpack[{extra}]'",
            name=error.name,
        ) from error


class Lazy:
    """A name of a module; the module is imported when the name is first used.

    >>> encoder = Lazy("json", "encoder", extra="none")
    >>> encoder.JSONEncoder().encode([1])
    '[1]'
    """

    def __init__(self, module: str, name: str, extra: str):
        self._place = module, name, extra

    def __getattr__(self, attribute: str) -> Any:
        module, name, extra = self._place
        return getattr(getattr(require(module, extra), name), attribute)

#!/usr/bin/env python3
"""Writes the table of public names, src/towerpack/_names.py, from the `__all__` of each module.

    python scripts/publish_names.py

The modules are the rooms, those of `OF_CORE`, `optimizer.wrappers`, and the modules of `compat`. A
name of `compat` is left out if a room publishes it as well. The modules are parsed, not imported.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

from towerpack import _names

TABLE = Path(_names.__file__)
HEAD = "_TABLE = {\n"
FOOT = "}\nNAMES = {module: tuple(names.split()) for module, names in _TABLE.items()}\n"
WIDTH = 100  # characters of a line
INDENT = " " * 8
# core publishes modules, users write `optimizer.Adam`, and cli is a command.
OF_CORE = ("every", "settings")
NOT_FLAT = ("core", "optimizer", "compat", "cli")


def exported(path: Path) -> list[str]:
    """The names in a module's `ALIASES` or `__all__`, which is a literal list; none without it."""
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id in ("ALIASES", "__all__"):
            return sorted(ast.literal_eval(node.value))
    return []


def published() -> dict[str, list[str]]:
    """The flat names of each module; those of `compat` come last."""
    package = TABLE.parent
    names = {f"towerpack.core.{x}": exported(package / "core" / f"{x}.py") for x in OF_CORE}
    for room in _names.ROOMS:
        if room not in NOT_FLAT:
            found = exported(package / room / "__init__.py")
            names[f"towerpack.{room}"] = [name for name in found if name not in _names.MODULES]
    wrappers = package / "optimizer" / "wrappers.py"
    names["towerpack.optimizer.wrappers"] = exported(wrappers)
    taken = {name for found in names.values() for name in found}
    for path in sorted((package / "compat").glob("[!_]*.py")):
        names[f"towerpack.compat.{path.stem}"] = sorted(set(exported(path)) - taken)
        taken.update(exported(path))
    return {module: found for module, found in names.items() if found}


def table() -> str:
    """The content of `_names.py` with the names that are published now."""
    entries = []
    for module, names in published().items():
        rows = textwrap.fill(
            " ".join(names), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT
        )
        entries.append(f'    "{module}": """\n{rows}\n    """,\n')
    return TABLE.read_text().partition(HEAD)[0] + HEAD + "".join(entries) + FOOT


if __name__ == "__main__":
    TABLE.write_text(table())

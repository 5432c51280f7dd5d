#!/usr/bin/env python3
"""Updates the table of public names, src/towerpack/_names.py, from the `__all__` of each room.

    python scripts/publish_names.py

The rooms are parsed, not imported. Names of other modules than a room's `__init__` are kept.
"""

from __future__ import annotations

import ast
from pathlib import Path

from towerpack import _names

TABLE = Path(_names.__file__)
HEAD = "NAMES: dict[str, tuple[str, ...]] = {\n"
NOT_FLAT = ("core", "compat", "cli")  # core publishes modules, compat old paths, cli a command


def exported(source: str) -> list[str]:
    """The names in a module's `__all__`, which is a literal list."""
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            return sorted(ast.literal_eval(node.value))
    return []


def main() -> None:
    names = {key: list(value) for key, value in _names.NAMES.items() if key.count(".") > 1}
    for room in _names.ROOMS:
        if room not in NOT_FLAT:
            found = exported((TABLE.parent / room / "__init__.py").read_text())
            names[f"towerpack.{room}"] = [name for name in found if name not in _names.MODULES]
    lines = [HEAD]
    for module, published in names.items():
        if published:
            rows = "".join(f'        "{name}",\n' for name in published)
            lines.append(f'    "{module}": (\n{rows}    ),\n')
    TABLE.write_text(TABLE.read_text().partition(HEAD)[0] + "".join(lines) + "}\n")


if __name__ == "__main__":
    main()

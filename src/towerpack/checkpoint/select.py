"""Which values of a file are meant, and what they are called in the model."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Pattern = str | re.Pattern[str]
Rename = Mapping[str, str] | Callable[[str], str | None]


@dataclass(frozen=True)
class Selection:
    """A choice among the names of a file, and their names in the model.

    `only` and `ignore` take names, prefixes ending in '/', patterns with `*`, and compiled regular
    expressions (which must match the whole name). `rename` is a dict from names, or prefixes ending
    in '/', to others; or a function, which may give None for what is not wanted. Last, `prefix`
    puts the file's variables under a scope of the model.

    >>> chosen = Selection(only=["conv*"], rename={"conv0/": "stem/"}, prefix="net")
    >>> chosen.names(["conv0/W", "conv1/W", "fc/W"])
    {'net/stem/W': 'conv0/W', 'net/conv1/W': 'conv1/W'}
    """

    only: Sequence[Pattern] | Pattern | None = None
    ignore: Sequence[Pattern] | Pattern = ()
    rename: Rename | None = None
    prefix: str | None = None

    def names(self, available: Iterable[str]) -> dict[str, str]:
        """Names in the model to names in the file."""
        chosen: dict[str, str] = {}
        for name in available:
            if self.only is not None and not matches(name, self.only):
                continue
            target = None if matches(name, self.ignore) else self._target(name)
            if target is None:
                continue
            if target in chosen:
                raise ValueError(
                    f"expected rename to give different names, received {target!r} for both "
                    f"{chosen[target]!r} and {name!r}"
                )
            chosen[target] = name
        return chosen

    def _target(self, name: str) -> str | None:
        renamed: str | None = name
        if callable(self.rename):
            renamed = self.rename(name)
        elif self.rename is not None:
            renamed = _from_table(name, self.rename)
        if renamed is None or not self.prefix:
            return renamed
        return f"{self.prefix.rstrip('/')}/{renamed}"


def matches(name: str, patterns: Sequence[Pattern] | Pattern) -> bool:
    """Whether one of the patterns means this name."""
    if isinstance(patterns, str | re.Pattern):
        return _means(patterns, name)
    return any(_means(pattern, name) for pattern in patterns)


def _means(pattern: Pattern, name: str) -> bool:
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    pattern = pattern.removesuffix(":0")
    if pattern.endswith("/"):
        return name.startswith(pattern)
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _from_table(name: str, table: Mapping[str, str]) -> str:
    """The name itself first, then the longest of its prefixes."""
    if name in table:
        return table[name]
    for prefix in sorted((key for key in table if key.endswith("/")), key=len, reverse=True):
        if name.startswith(prefix):
            return table[prefix] + name.removeprefix(prefix)
    return name

"""The result of a load, name by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from towerpack.checkpoint.variable_names import own_names
from towerpack.core import logger

_ROWS = 20  # of each kind in the log; the object lists all of them
_MISSING, _UNUSED = "missing in the file", "unused"
_WIDTH = len(_MISSING)


class LoadError(ValueError):
    """Saved values do not fit the model; the message lists all of them."""


@dataclass
class LoadReport:
    """Names grouped by what happened to them; `str()` is a line, `table()` is the full list.

    `missing` are variables of the model that the file lacks, or whose values there were not chosen
    (`not_chosen`); `unused` are values in the file that the model lacks. `mismatched` maps names to
    the reason, `changed` (loaded after a cast or reshape) to the change. `withheld` are slots of an
    optimizer that keep their initial values because their variable was not loaded.
    """

    source: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    withheld: list[str] = field(default_factory=list)
    not_chosen: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every variable got its own value and every value was used."""
        return not (self.missing or self.unused or self.mismatched or self.changed or self.withheld)

    def __str__(self) -> str:
        parts = [self._head()]
        for title, names in self._kinds():
            if names:
                shown = ", ".join(list(names)[:4]) + (", ..." if len(names) > 4 else "")
                parts.append(f"{len(names)} {title}: {shown}")
        return "; ".join(parts)

    def table(self) -> str:
        """The number of loaded names, and a line for each name that was not loaded unchanged."""
        return "\n".join([self._head(), *self.differences()])

    def differences(self) -> list[str]:
        """A line for each name that was not loaded unchanged."""
        return [line for title, names in self._kinds() for line in _rows(title, names)]

    def log(self) -> None:
        """Logs a shortened table, as a warning if it concerns the model's own variables."""
        own = set(self._own())
        lines = [self._head()]
        for title, names in self._kinds():
            listed = {
                name: why
                for name, why in names.items()
                if title not in (_MISSING, _UNUSED) or name in own
            }
            lines += _rows(title, listed, _ROWS)
            if len(listed) < len(names):
                rest = len(names) - len(listed)
                lines.append(f"  {title:{_WIDTH}}  {rest} slots, averages and counters")
        worrying = bool(self.mismatched or own)
        (logger.warning if worrying else logger.info)("%s", "\n".join(lines))

    def _own(self) -> list[str]:
        """Missing or unused names, without slots, averages and counters, which often differ."""
        common = [*self.loaded, *self.mismatched, *self.withheld]
        return [
            *own_names(self.missing, [*self.missing, *common]),
            *own_names(self.unused, [*self.unused, *common]),
        ]

    def _head(self) -> str:
        count = len(self.loaded)
        return f"{count} variable{'' if count == 1 else 's'} loaded from {self.source}"

    def _kinds(self) -> list[tuple[str, Mapping[str, str]]]:
        left_out = dict.fromkeys(self.not_chosen, "it is in the file but was not chosen")
        return [
            ("mismatched", self.mismatched),
            (_MISSING, dict.fromkeys(self.missing, "") | left_out),
            (_UNUSED, dict.fromkeys(self.unused, "")),
            ("withheld", dict.fromkeys(self.withheld, "its variable was not loaded")),
            ("changed", self.changed),
        ]


def _rows(title: str, names: Mapping[str, str], rows: int | None = None) -> list[str]:
    shown = list(names.items())[:rows]
    width = max((len(name) for name, _ in shown), default=0)
    lines = [f"  {title:{_WIDTH}}  {name:{width}}  {why}".rstrip() for name, why in shown]
    if len(names) > len(shown):
        lines.append(f"  {title:{_WIDTH}}  ... and {len(names) - len(shown)} more")
    return lines

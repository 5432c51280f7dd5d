"""What a load did, name by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from towerpack.checkpoint.slots import own_names

_ROWS = 20  # of each kind in the log; the object has them all


class LoadError(ValueError):
    """Saved values do not fit the model; the message lists all that do not."""


@dataclass
class LoadReport:
    """Names by what became of them; `str()` is a line, `table()` says it in full.

    `missing` are variables of the model that the file lacks, `unused` values of the file that the
    model lacks. `mismatched` and `changed` (loaded, after a cast or reshape) say why and how.
    `withheld` are slots of an optimizer whose own variable was not loaded: they stay fresh too.
    """

    source: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    withheld: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every variable got its own value and every value was used."""
        return not (self.missing or self.unused or self.mismatched or self.changed or self.withheld)

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} variables loaded from {self.source}"]
        for title, names in self._kinds():
            if names:
                shown = ", ".join(list(names)[:4]) + (", ..." if len(names) > 4 else "")
                parts.append(f"{len(names)} {title}: {shown}")
        return "; ".join(parts)

    def table(self, rows: int | None = None) -> str:
        """One line for each name that was not simply loaded, at most `rows` of each kind."""
        lines = [f"{len(self.loaded)} variables loaded from {self.source}"]
        for title, names in self._kinds():
            lines += _rows(title, names, rows)
        return "\n".join(lines)

    def worth_a_warning(self) -> bool:
        """Whether more differs than slots, averages and counters, as is usual in fine-tuning."""
        common = [*self.loaded, *self.mismatched, *self.withheld]
        missing = own_names(self.missing, [*self.missing, *common])
        return bool(self.mismatched or missing or own_names(self.unused, [*self.unused, *common]))

    def for_the_log(self) -> str:
        return self.table(_ROWS)

    def _kinds(self) -> list[tuple[str, Mapping[str, str]]]:
        return [
            ("mismatched", self.mismatched),
            ("missing in the file", dict.fromkeys(self.missing, "")),
            ("unused", dict.fromkeys(self.unused, "")),
            ("withheld", dict.fromkeys(self.withheld, "its variable was not loaded")),
            ("changed", self.changed),
        ]


def _rows(title: str, names: Mapping[str, str], rows: int | None) -> list[str]:
    shown = list(names.items())[:rows]
    width = max((len(name) for name, _ in shown), default=0)
    lines = [f"  {title:19}  {name:{width}}  {why}".rstrip() for name, why in shown]
    if len(names) > len(shown):
        lines.append(f"  {title:19}  ... and {len(names) - len(shown)} more")
    return lines

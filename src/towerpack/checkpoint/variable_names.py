"""Names of variables: which ones to load, and which are not the model's own.

Slots of optimizers, averages and counters are not the model's own. A slot belongs to a variable and
is useless without it. Its name is derived from that of the variable, here `fc/W`: towerpack and
TensorFlow 1 use `fc/W/Adam`, and `fc/W/ExponentialMovingAverage` for averages. Keras has a scope
for each optimizer and uses `adam/fc_W_0_momentum` or `adam/fc_W_momentum`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Pattern = str | re.Pattern[str]
Rename = Mapping[str, str] | Callable[[str], str | None]

# Counters of a run and its optimizers; further ones of the same name end in a number.
_COUNTERS = re.compile(
    r"(.*/)?(global_step|learning_rate|beta[12]_power|EMA_steps|loss_scale"
    r"|(LAMB|Adafactor)/steps|AccumGrad/counter)(_\d+)?"
)
KERAS_OPTIMIZER = "optimizer/vars"  # where a Keras weights file keeps its numbered variables
_OLD_AVERAGES = "EMA/"  # of summaries, in tensorpack's checkpoints
_SLOTS = ("Adam", "Momentum", "RMSProp", "ExponentialMovingAverage", "AccumGrad")


@dataclass(frozen=True)
class Selection:
    """Chooses names of a file and maps them to names of the model.

    `only` and `ignore` take names, prefixes ending in '/', patterns with `*`, and compiled regular
    expressions (which must match the whole name). `rename` is a dict from names, or prefixes ending
    in '/', to others; or a function, which returns None for names to leave out. Finally, `prefix`
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
                    f"expected rename to return different names, received {target!r} for both "
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
    """Whether one of the patterns matches this name."""
    if isinstance(patterns, str | re.Pattern):
        return _matches(patterns, name)
    return any(_matches(pattern, name) for pattern in patterns)


def _matches(pattern: Pattern, name: str) -> bool:
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    pattern = pattern.removesuffix(":0")
    if pattern.endswith("/"):
        return name.startswith(pattern)
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _from_table(name: str, table: Mapping[str, str]) -> str:
    """Looks up the name itself first, then the longest of its prefixes."""
    if name in table:
        return table[name]
    for prefix in sorted((key for key in table if key.endswith("/")), key=len, reverse=True):
        if name.startswith(prefix):
            return table[prefix] + name.removeprefix(prefix)
    return name


def owners(names: Iterable[str]) -> dict[str, str | None]:
    """The names that are not the model's own, each with the variable it belongs to, or None.

    >>> owners(["fc/W", "fc/W/Adam", "fc/b", "beta1_power"])
    {'fc/W/Adam': 'fc/W', 'beta1_power': None}
    >>> names = ["fc/W", "adam/iteration", "adam/learning_rate", "adam/fc_W_0_velocity"]
    >>> owners(names)["adam/fc_W_0_velocity"]
    'fc/W'
    """
    names = list(names)
    scopes = _keras_optimizers(names)
    others = [name for name in names if name.rpartition("/")[0] not in scopes]
    known, flat = set(others), {name.replace("/", "_"): name for name in others}
    found: dict[str, str | None] = {}
    for name in names:
        scope, _, rest = name.rpartition("/")
        if scope in scopes:
            beginnings = _beginnings(rest, "_")
            found[name] = next((flat[begin] for begin in beginnings if begin in flat), None)
            continue
        owner = next((begin for begin in _beginnings(name, "/") if begin in known), None)
        if owner is not None or _COUNTERS.fullmatch(name) or scope == KERAS_OPTIMIZER:
            found[name] = owner
    return found


def own_names(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names that are the model's own; `known` are all names in the model or file.

    A name that looks like that of a slot is left out even if its variable is not known.
    """
    foreign = owners(known)
    return [
        name
        for name in names
        if name not in foreign
        and _OLD_AVERAGES not in name
        and not name.rpartition("/")[2].startswith(_SLOTS)
    ]


def _keras_optimizers(names: Iterable[str]) -> set[str]:
    """The scopes of Keras' optimizers: each has an iteration and a learning rate."""
    known = set(names)
    scopes = {name.removesuffix("/iteration") for name in known if name.endswith("/iteration")}
    return {scope for scope in scopes if f"{scope}/learning_rate" in known}


def _beginnings(name: str, separator: str) -> Iterator[str]:
    """The part before each separator, the longest first."""
    parts = name.split(separator)
    for end in range(len(parts) - 1, 0, -1):
        yield separator.join(parts[:end])

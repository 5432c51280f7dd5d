"""Which variables are not the model's own: slots of optimizers, averages, counters.

A slot belongs to a variable and is nothing without it. That of `fc/W` is named after it: by
towerpack and TensorFlow 1 `fc/W/Adam`, averages `fc/W/ExponentialMovingAverage`; by Keras, which
has a scope for each optimizer, `adam/fc_W_0_momentum` or `adam/fc_W_momentum`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Of a run and of its optimizers; further ones of the same name have a number.
_COUNTERS = re.compile(
    r"(.*/)?(global_step|learning_rate|beta[12]_power|EMA_steps|loss_scale"
    r"|(LAMB|Adafactor)/steps|AccumGrad/counter)(_\d+)?"
)
KERAS_OPTIMIZER = "optimizer/vars"  # where a Keras weights file has numbered variables of it
_OLD_AVERAGES = "EMA/"  # of summaries, in tensorpack's checkpoints
_SLOTS = ("Adam", "Momentum", "RMSProp", "ExponentialMovingAverage", "AccumGrad")


def owners(names: Iterable[str]) -> dict[str, str | None]:
    """The names that are not the model's own, each to the variable it belongs to, if to one.

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
    """Those of the names that are the model's own, where `known` are all of the model or file.

    A slot whose variable is not known is none of them either, if its name says that it is one.
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
    """The scopes of Keras' optimizers: each has these two."""
    known = set(names)
    scopes = {name.removesuffix("/iteration") for name in known if name.endswith("/iteration")}
    return {scope for scope in scopes if f"{scope}/learning_rate" in known}


def _beginnings(name: str, separator: str) -> Iterator[str]:
    """What is before each separator, the longest first."""
    parts = name.split(separator)
    for end in range(len(parts) - 1, 0, -1):
        yield separator.join(parts[:end])

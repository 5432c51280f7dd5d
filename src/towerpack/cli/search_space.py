"""The search space of a sweep: `lr=log(1e-4,1e-1)`, `units=32,64`, and what to try next in it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer

from towerpack.core.optional import require
from towerpack.core.seeds import Stream, key_of
from towerpack.core.similar import nearest_first

KINDS = ("log", "uniform", "int")
FORMS = "KEY=log(LOW,HIGH), KEY=uniform(LOW,HIGH), KEY=int(LOW,HIGH), KEY=A,B,C or KEY=VALUE"
DIGITS = 6  # of a number that is tried, so that the command of a trial has exactly this number
MOST_LISTED = 10_000  # combinations; of a larger space, a repetition is unlikely
PROPOSALS = 20  # of the sampler, before a combination is drawn from those that are left

_CALL = re.compile(r"([a-z_]+)\((.*)\)", re.IGNORECASE)
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class Parameter:
    """One key of the settings and the values to try: `choices`, or numbers from low to high.

    Choices are kept as they were written, because the settings of the program have their types.
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def count(self) -> int | None:
        """The number of values; None for a range of floats."""
        if self.choices:
            return len(self.choices)
        return int(self.high - self.low) + 1 if self.whole else None

    def values(self) -> list[Any]:
        """All values of choices or of a range of integers."""
        return list(self.choices) or list(range(int(self.low), int(self.high) + 1))

    def samples(self) -> list[str]:
        """Values that show whether the settings accept this parameter, one of them not whole."""
        if self.choices:
            return list(self.choices)
        between = [] if self.whole else [self.low + 0.381966 * (self.high - self.low)]
        return [self.text(value) for value in (self.low, *between, self.high)]

    def text(self, value: Any) -> str:
        """A value as it is written in a command."""
        if self.choices:
            return str(value)
        return str(int(value)) if self.whole else f"{value:.{DIGITS}g}"

    def rounded(self, value: Any) -> Any:
        """The value that `text` writes, within the range."""
        if self.choices or self.whole:
            return value
        return min(max(float(self.text(value)), self.low), self.high)

    def distribution(self) -> Any:
        """The same for optuna."""
        optuna = require("optuna", extra="sweep").distributions
        if self.choices:
            return optuna.CategoricalDistribution(self.choices)
        if self.whole:
            return optuna.IntDistribution(int(self.low), int(self.high), log=self.log)
        return optuna.FloatDistribution(self.low, self.high, log=self.log)


@dataclass(frozen=True)
class SearchSpace:
    """The parameters of a sweep, and the settings that are the same in all its trials."""

    parameters: tuple[Parameter, ...]
    fixed: tuple[tuple[str, str], ...] = ()

    def overrides(self, params: dict[str, Any]) -> list[str]:
        """What a trial with these values adds to `towerpack train FILE.py`."""
        varied = [f"{each.key}={each.text(params[each.key])}" for each in self.parameters]
        return varied + [f"{key}={value}" for key, value in self.fixed]

    @property
    def count(self) -> int | None:
        """The number of combinations; None if a range of floats makes them endless."""
        counts = [each.count for each in self.parameters]
        return None if None in counts else math.prod(count for count in counts if count)

    def propose(self, trials: Sequence[Any], seed: int, maximize: bool) -> dict[str, Any] | None:
        """The values of the next trial; None if every combination was tried.

        A pure function of the trials so far and the seed, so a sweep that was interrupted tries
        what it would have tried. The sampler is optuna's TPE: the first ten trials are random.
        """
        optuna = require("optuna", extra="sweep")
        tried = {self._key(trial.params) for trial in trials}
        if self.count is not None and len(tried) >= self.count:
            return None
        number = len(trials)
        sampler = optuna.samplers.TPESampler(seed=key_of(seed, ("sampler", number))[0] % 2**32)
        direction = "maximize" if maximize else "minimize"
        study = optuna.create_study(sampler=sampler, direction=direction)
        study.add_trials([trial for trial in trials if trial.state.is_finished()])
        distributions = {each.key: each.distribution() for each in self.parameters}
        for _ in range(PROPOSALS):
            drawn = study.ask(distributions).params
            params = {each.key: each.rounded(drawn[each.key]) for each in self.parameters}
            if self._key(params) not in tried:
                return params
        if self.count is None or self.count > MOST_LISTED:
            return params
        keys = [each.key for each in self.parameters]
        every = itertools.product(*[each.values() for each in self.parameters])
        left = [
            params
            for values in every
            if self._key(params := dict(zip(keys, values, strict=True))) not in tried
        ]
        return left[Stream(seed, "rest").generator(0, number).integers(len(left))]

    def _key(self, params: dict[str, Any]) -> tuple[str, ...]:
        return tuple(each.text(params[each.key]) for each in self.parameters)


def parse_space(texts: Sequence[str]) -> SearchSpace:
    """The search space that the arguments of `towerpack sweep` describe.

    >>> space = parse_space(["lr=log(1e-4,1e-1)", "units=32,64", "layers=int(1,3)", "epochs=5"])
    >>> [each.key for each in space.parameters], space.fixed
    (['lr', 'units', 'layers'], (('epochs', '5'),))
    """
    parameters: dict[str, Parameter] = {}
    fixed: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise typer.BadParameter(f"expected {FORMS}, received {text!r}")
        if key in parameters or key in fixed:
            raise typer.BadParameter(f"expected each key once, received {key!r} again in {text!r}")
        call = _CALL.fullmatch(value)
        if call:
            parameters[key] = _range(key, call[1], _split(call[2]), text)
        elif len(choices := _split(value)) == 1:
            fixed[key] = value
        else:
            if "" in choices or len(set(choices)) < len(choices):
                raise typer.BadParameter(
                    f"expected different values with commas between them, received {text!r}"
                )
            parameters[key] = Parameter(key, tuple(choices))
    if not parameters:
        raise typer.BadParameter(
            f"expected a range or several values for at least one key: {FORMS}; received "
            + (" ".join(texts) or "none")
        )
    return SearchSpace(tuple(parameters.values()), tuple(fixed.items()))


def _range(key: str, kind: str, arguments: list[str], text: str) -> Parameter:
    if kind not in KINDS:
        raise typer.BadParameter(
            f"expected one of {nearest_first(kind, KINDS)} before the bracket, received {text!r}"
        )
    whole = kind == "int"
    log = kind == "log" or (whole and arguments[2:] == ["log"])
    number = "whole numbers" if whole else "numbers"
    try:
        low, high = map(int if whole else float, arguments[: 2 if whole and log else None])
    except ValueError as error:
        form = "int(LOW,HIGH) or int(LOW,HIGH,log)" if whole else f"{kind}(LOW,HIGH)"
        raise typer.BadParameter(f"expected {form} with {number}, received {text!r}") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise typer.BadParameter(f"expected LOW < HIGH, both finite, received {text!r}")
    if log and low <= 0:
        raise typer.BadParameter(f"expected LOW > 0 on a logarithmic scale, received {text!r}")
    return Parameter(key, low=low, high=high, log=log, whole=whole)


def _split(text: str) -> list[str]:
    """The parts between commas that stand outside of brackets.

    >>> _split("(32,32), (64,64)")
    ['(32,32)', '(64,64)']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]

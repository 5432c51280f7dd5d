"""What towerpack has to reach, beside the other contenders."""

import statistics
from typing import NamedTuple

from ratios import median_range, turn_ratios


class Ratio(NamedTuple):
    """One contender against another, on one model: at least, or at most, so much."""

    words: str
    model: str
    mine: str
    other: str
    least: float | None = None
    most: float | None = None
    key: str = "rate"

    @property
    def contenders(self):
        return {self.mine, self.other}

    def of_turns(self, results):
        mine, other = (results.get((self.model, module)) for module in (self.mine, self.other))
        return turn_ratios(mine, other, self.key)

    def met(self, value):
        return value >= self.least if self.least is not None else value <= self.most

    def wanted(self):
        return f"at least {self.least}" if self.least is not None else f"at most {self.most}"


class Share(NamedTuple):
    """A share of the time, by itself."""

    words: str
    model: str
    mine: str
    most: float
    key: str

    @property
    def contenders(self):
        return {self.mine}

    def of_turns(self, results):
        return [answer[self.key] for answer in results.get((self.model, self.mine), [])]

    def met(self, value):
        return value <= self.most

    def wanted(self):
        return f"at most {self.most}"


def undecided(bar, results):
    """Whether further turns may tell that it is met, or that it is not."""
    turns = bar.of_turns(results)
    return bool(turns) and len({bar.met(value) for value in median_range(turns)}) == 2


def lines(bars, results):
    """A table of what was reached."""
    found = ["\n| bar | reached | single turns | of them | wanted | |", "|---|---|---|---|---|---|"]
    for bar in bars:
        turns = bar.of_turns(results)
        if not turns:
            found.append(f"| {bar.words} | | | | {bar.wanted()} | not measured |")
            continue
        value = statistics.median(turns)
        met = ("yes" if bar.met(value) else "NO") + ("?" if undecided(bar, results) else "")
        span = f"{min(turns):.2f} to {max(turns):.2f} | {len(turns)}"
        found.append(f"| {bar.words} | {value:.3f} | {span} | {bar.wanted()} | {met} |")
    return found


def times(model, other, least):
    return Ratio(f"{model}: times {other}", model, "towerpack_trainer", other, least)


BARS = [
    times("M1", "torch_eager", 1.15),
    times("M1", "keras_fit", 1.3),
    times("M1", "keras_without_onednn", 1.3),
    times("M1", "keras_best", 1.0),
    times("M2", "torch_default", 1.2),
    times("M2", "torch_eager", 1.2),
    times("M2", "keras_fit", 2.0),
    times("M2", "keras_without_onednn", 2.0),
    times("M3", "keras_fit", 6.0),
    times("M3", "keras_best", 2.0),
    times("M3", "jax_scan", 0.95),
    times("M1", "bare_loop", 0.97),
    times("M2", "bare_loop", 0.97),
    times("M3", "bare_loop", 0.85),
    *(
        Ratio(f"{model}: towerpack.keras.fit, times {other}", model, "towerpack_keras", other, 1.0)
        for model in ("M1", "M2", "M3")
        for other in ("keras_fit", "keras_best")
    ),
    *(
        Ratio(f"M1: two towers of half the batch ({name})", "M1", name, "towerpack_trainer", 0.85)
        for name in ("towerpack_replicated", "towerpack_shared")
    ),
    Ratio(
        "first step, times the bare loop's time",
        "start",
        "start_towerpack",
        "start_bare",
        most=1.15,
        key="seconds",
    ),
    Ratio(
        "peak memory, times the bare loop's",
        "start",
        "start_towerpack",
        "start_bare",
        most=1.1,
        key="memory",
    ),
    Share("E1: waiting, where the flow is faster", "E1", "jpeg_trainer", 0.03, "waiting"),
    Ratio("E2: times the flow alone, where it is slower", "E2", "jpeg_trainer", "jpeg_flow", 0.95),
]

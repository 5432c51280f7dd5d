"""How steps are run: one by one, many in one call, or many in one compiled call.

Which is fastest depends on the model: overhead dominates small ones, and XLA wins on small dense
models but loses on convolutions on a CPU. So the early steps of a run, which count as training like
all others, try the ways, and the fastest is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from towerpack.core import logger

STEP, LOOP, COMPILED = "step", "loop", "compiled"
WORDS = {
    STEP: "one by one",
    LOOP: "many in one call",
    COMPILED: "many in one call, compiled by XLA",
}

CALL_SECONDS = 0.2  # of a call of many steps: Ctrl-C and the progress bar wait for its end
FEW = 8  # steps: so many in a call make its cost small beside theirs
PATIENCE_SECONDS = 0.5  # of steps that have their data with those that have not
FIXED_PATIENCE_SECONDS = 10.0  # the same, where the number of steps in a call was set by hand
WINDOW_SECONDS, WINDOWS = 0.05, 4  # of a trial: long enough to tell the ways apart
SLOWER, SLOWER_SECONDS = 3, 0.5  # a way that is 3 times slower than another is tried for 0.5 s
OVERHEAD_SECONDS = 0.01  # the overhead of a step, some 0.5 ms, is nothing to a longer one
CHUNK = 32  # steps in a compiled call before anything is known of their time and their batches
MOST_CHUNK = 128  # of them: a call costs 0.5 ms, which is then little beside the quickest steps
CHUNK_BYTES = 16 << 20  # of their batches, which wait stacked in memory, two such stacks


@dataclass
class Trial:
    """What one way has shown, in windows of time of which the best counts.

    Its first call, which traces and compiles, does not count; nor does a window in which the
    machine was busy with something else, as long as there is a better one.
    """

    calls: int = 0
    steps: int = 0
    seconds: float = 0.0
    windows: int = 0
    total_seconds: float = 0.0
    step_seconds: float = float("inf")

    def note(self, steps: int, seconds: float) -> None:
        self.calls += 1
        self.total_seconds += seconds
        if self.calls == 1:
            return
        self.steps, self.seconds = self.steps + steps, self.seconds + seconds
        if self.seconds >= WINDOW_SECONDS:
            self.step_seconds = min(self.step_seconds, self.seconds / self.steps)
            self.steps, self.seconds, self.windows = 0, 0.0, self.windows + 1

    @property
    def enough(self) -> bool:
        return self.windows >= WINDOWS


class Pace:
    """Chooses among `ways` by measuring; with one way there is nothing to choose."""

    def __init__(self, ways: Sequence[str], steps_per_call: int | None = None):
        self._untried = list(ways)
        self._per_call = steps_per_call
        self._trials = {way: Trial() for way in ways}
        self._current = self._untried.pop(0)
        self.chunk = CHUNK
        self.chosen: str | None = None if self._untried else self._current

    def when_late(self, way: str, planned: int) -> tuple[int, float]:
        """Where data is late: for how many of the planned steps to wait, and how many seconds.

        A call takes some 2 ms of the processors, also from those who make the data. For a number
        set by hand more patience is due.
        """
        if self._per_call is not None:
            return planned, FIXED_PATIENCE_SECONDS
        return planned if way == COMPILED else min(planned, FEW), PATIENCE_SECONDS

    def plan(self, free: int) -> tuple[str, int]:
        """How to go on, and how many of the `free` steps to run in the next call."""
        way = self.chosen or self._current
        if way == STEP:
            return way, 1
        limit = self.chunk if way == COMPILED else self._per_call or self._affordable()
        if self.chosen is None:
            # The way that is being tried may be much slower than the others.
            limit = min(limit, max(FEW, int(SLOWER_SECONDS / self._trials[way].step_seconds)))
        return way, min(free, limit)

    def fit_chunk(self, batch_bytes: int) -> int:
        """How many steps a compiled call has at most, from now on."""
        by_memory = CHUNK_BYTES // max(batch_bytes, 1)
        self.chunk = max(1, min(MOST_CHUNK, by_memory, self._affordable()))
        return self.chunk

    def _affordable(self) -> int:
        """As many steps as fit into a call, judged by the fastest way so far."""
        fastest = min(trial.step_seconds for trial in self._trials.values())
        return CHUNK if fastest == float("inf") else max(1, int(CALL_SECONDS / fastest))

    def note(self, way: str, steps: int, seconds: float) -> None:
        trial = self._trials.get(way)
        if trial is None or (self.chosen is not None and trial.enough):
            return
        trial.note(steps, seconds)
        if self.chosen is None and (trial.enough or self._much_slower(trial)):
            self._go_on()

    def _much_slower(self, trial: Trial) -> bool:
        """Whether to abandon a trial; two windows, since one may have been a busy moment."""
        best = min(other.step_seconds for other in self._trials.values())
        return (
            trial.windows >= 2
            and trial.total_seconds > SLOWER_SECONDS
            and trial.step_seconds > SLOWER * best
        )

    def drop(self, way: str, reason: str) -> None:
        """Leaves out a way that does not work for this model."""
        logger.info("steps are not run %s: %s", WORDS[way], reason)
        del self._trials[way]
        self._untried = [other for other in self._untried if other != way]
        if not self._trials:
            self._trials[STEP] = Trial()
            self._current = self.chosen = STEP
        elif self._current == way:
            self.chosen = None
            self._go_on()

    def _go_on(self) -> None:
        slow = self._trials[STEP].step_seconds > OVERHEAD_SECONDS if STEP in self._trials else False
        if self._untried and not slow:
            self._current = self._untried.pop(0)
            return
        tried = {way: trial for way, trial in self._trials.items() if trial.windows}
        if not tried:
            self._current = self.chosen = next(iter(self._trials))
            return
        self.chosen = min(tried, key=lambda way: tried[way].step_seconds)
        times = ", ".join(f"{WORDS[w]} {t.step_seconds * 1e3:.3g} ms" for w, t in tried.items())
        logger.info("steps are run %s (a step takes, %s)", WORDS[self.chosen], times)

    def state(self) -> str | None:
        return self.chosen

    def restore(self, chosen: Any) -> None:
        """Goes on with the choice of an earlier run, if it is still one."""
        if chosen in self._trials and self.chosen is None:
            self.chosen = chosen
